"""One HTTP request and its response as the client met them, before anything in them is understood."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
    """What came back for a request: all bytes in one piece, and for each read when it returned and how many it brought.

    `scheduled_seconds` is when it should have been sent, None where only the load's own course says when.
    `sent_seconds` is taken before the first byte of the request is written, on an open connection; `connect_seconds` is
    how long opening it took, None on one that was used before. `end` ENDED means that the response was over, by its own
    framing or because it is no HTTP; CLOSED that the server closed the connection, which may be the response's end.
    """

    scheduled_seconds: float | None = None
    sent_seconds: float = 0.0
    sent_unix_seconds: float = 0.0
    connect_seconds: float | None = None
    end: End = End.ENDED
    detail: str = ""
    raw: bytearray = field(default_factory=bytearray)
    read_seconds: array[float] = field(default_factory=lambda: array("d"))
    read_bytes: array[int] = field(default_factory=lambda: array("I"))
    ended_seconds: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # as few objects as can be: the loop that stamps arrivals makes the pickle.
        return _restored, (
            (
                self.scheduled_seconds,
                self.sent_seconds,
                self.sent_unix_seconds,
                self.connect_seconds,
                self.end.value,
                self.detail,
                self.ended_seconds,
            ),
            bytes(self.raw),
            self.read_seconds.tobytes(),
            self.read_bytes.tobytes(),
        )


def _restored(figures: tuple[Any, ...], raw: bytes, read_seconds: bytes, read_bytes: bytes) -> Exchange:
    scheduled_seconds, sent_seconds, sent_unix_seconds, connect_seconds, end, detail, ended_seconds = figures
    return Exchange(
        scheduled_seconds,
        sent_seconds,
        sent_unix_seconds,
        connect_seconds,
        End(end),
        detail,
        bytearray(raw),
        array("d", read_seconds),
        array("I", read_bytes),
        ended_seconds,
    )
