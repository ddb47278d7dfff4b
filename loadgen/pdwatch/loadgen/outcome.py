"""How a request ended, from what the client met and what the response spells."""

from __future__ import annotations

from typing import Final

from .assembly import Assembled
from .exchange import End, Exchange
from .framing import Response
from .transcript import Outcome

_OUTCOMES = {
    End.NO_CONNECTION: Outcome.CONNECT_ERROR,
    End.CLOSED: Outcome.RESET,
    End.BROKEN: Outcome.RESET,
    End.TOO_LONG: Outcome.TRUNCATED,
    End.TIMEOUT: Outcome.TIMEOUT,
    End.CANCELLED: Outcome.CANCELLED,
}
# why a stream of a server that ignores `stream_options` is truncated; a plan with `promises_usage` false takes it.
NO_USAGE: Final = "no usage"

_SERVERS_OWN = (End.ENDED, End.CLOSED, End.BROKEN)


def classify(
    exchange: Exchange, response: Response, assembled: Assembled, *, is_streamed: bool, promises_usage: bool
) -> tuple[Outcome, str]:
    """The outcome of a request that asked for a stream or not, and for usage or not; and a line that says why.

    An error inside the response outranks the broken connection that often follows it. A stream that was promised and
    came as one JSON document is truncated: its tokens have no times.
    """
    is_success = response.status is not None and 200 <= response.status < 300
    has_ended = response.is_complete and exchange.end in (End.ENDED, End.CLOSED)
    if response.error is not None and exchange.end in _SERVERS_OWN:
        return Outcome.HTTP_ERROR, response.error
    if is_success and assembled.errors and (has_ended or exchange.end in (End.CLOSED, End.BROKEN)):
        return Outcome.IN_BAND_ERROR, assembled.errors[0]
    if not has_ended:
        return _OUTCOMES.get(exchange.end, Outcome.RESET), exchange.detail
    if not is_success:
        body = response.body.data[:300].decode(errors="replace")
        return Outcome.HTTP_ERROR, f"HTTP {response.status}: {body}"
    if assembled.first_choice_seconds is None:
        return Outcome.EMPTY, "the answer holds no choice"
    missing = []
    if is_streamed and not assembled.is_event_stream:
        missing.append("event stream")
    if assembled.finish_reason is None:
        missing.append("finish_reason")
    if promises_usage and assembled.usage is None:
        missing.append("usage")
    if is_streamed and assembled.is_event_stream and not assembled.is_done:
        missing.append("[DONE]")
    if missing:
        return Outcome.TRUNCATED, ", ".join(f"no {part}" for part in missing)
    return Outcome.COMPLETE, ""
