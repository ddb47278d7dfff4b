"""One HTTP request and its response as the client met them, before anything in them is understood."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .assembly import Assembled
from .framing import Response
from .transcript import Outcome


class End(StrEnum):
    """Why the client stopped reading."""

    ENDED = "ended"
    NO_CONNECTION = "no_connection"
    CLOSED = "closed"
    BROKEN = "broken"
    TOO_LONG = "too_long"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Exchange:
    """What came back for a request: the bytes of each read and the time at which it returned.

    `connect_seconds` is None on a kept connection. `end` ENDED means that the response was over, by its own framing or
    because it is no HTTP; CLOSED that the server closed the connection, which may be the response's end.
    """

    sent_seconds: float
    sent_unix_seconds: float
    connect_seconds: float | None = None
    end: End = End.ENDED
    detail: str = ""
    read_seconds: list[float] = field(default_factory=list)
    read_data: list[bytes] = field(default_factory=list)
    ended_seconds: float = 0.0


_OUTCOMES = {
    End.NO_CONNECTION: Outcome.CONNECT_ERROR,
    End.CLOSED: Outcome.RESET,
    End.BROKEN: Outcome.RESET,
    End.TOO_LONG: Outcome.TRUNCATED,
    End.TIMEOUT: Outcome.TIMEOUT,
    End.CANCELLED: Outcome.CANCELLED,
}


def classify(exchange: Exchange, response: Response, assembled: Assembled) -> tuple[Outcome, str]:
    """The outcome of a streamed request that asked for usage, and a line that says why.

    An error inside the stream outranks the broken connection that often follows it.
    """
    is_success = response.status is not None and 200 <= response.status < 300
    has_ended = response.is_complete and exchange.end in (End.ENDED, End.CLOSED)
    if response.error is not None and exchange.end in (End.ENDED, End.CLOSED, End.BROKEN):
        return Outcome.HTTP_ERROR, response.error
    if is_success and assembled.errors and (has_ended or exchange.end in (End.CLOSED, End.BROKEN)):
        return Outcome.IN_BAND_ERROR, assembled.errors[0]
    if not has_ended:
        return _OUTCOMES[exchange.end], exchange.detail
    if not is_success:
        body = b"".join(data for _, data in response.chunks)[:300].decode(errors="replace")
        return Outcome.HTTP_ERROR, f"HTTP {response.status}: {body}"
    if assembled.first_choice_seconds is None:
        return Outcome.EMPTY, "the answer holds no choice"
    parts = {
        "finish_reason": assembled.finish_reason is not None,
        "usage": assembled.usage is not None,
        "[DONE]": assembled.is_done,
    }
    if not all(parts.values()):
        missing = ", ".join(f"no {part}" for part, is_there in parts.items() if not is_there)
        return Outcome.TRUNCATED, missing
    return Outcome.COMPLETE, ""
