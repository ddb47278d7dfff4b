"""What happened to one request: everything sent, every byte received and when."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .body import Body
from .sources.work import CHAT_PATH, SessionTurn
from .task import Task


class Outcome(StrEnum):
    """How a request ended, as far as the client can tell without judging the answer."""

    COMPLETE = "complete"
    """HTTP 2xx with an answer, its finish_reason, and usage and [DONE] where they were promised."""
    TRUNCATED = "truncated"
    """The response ended in good order for HTTP, but something of the promised stream is missing."""
    IN_BAND_ERROR = "in_band_error"
    """HTTP 2xx whose stream carries an error."""
    HTTP_ERROR = "http_error"
    """A status other than 2xx, or bytes that are not HTTP."""
    CONNECT_ERROR = "connect_error"
    """No connection: refused, unknown host, TLS failure, or no answer in time."""
    RESET = "reset"
    """The connection broke before the response ended."""
    TIMEOUT = "timeout"
    """The response did not end within the request timeout."""
    CANCELLED = "cancelled"
    """We went away."""
    EMPTY = "empty"
    """HTTP 2xx without one event of an answer."""


class Label(StrEnum):
    """When in its phase a request was sent; only measured ones count."""

    WARMUP = "warmup"
    MEASURED = "measured"
    COOLDOWN = "cooldown"


@dataclass(frozen=True, slots=True)
class Transcript:
    """One request from its sending to its end; everything else is derived from these.

    Times named `_seconds` are on the client's monotonic clock, except `sent_unix_seconds`. `sent_seconds` is taken
    before the first byte of the request is written, on an open connection; `connect_seconds` is how long opening it
    took, ahead of this request and for it, None on one that was used before. `received` are the body's bytes with the
    time each read returned. `response_headers` has lower-case names; repeated ones are joined with ", ". Cookies and
    headers of authentication are never part of it, and where the server echoes the bearer token, asterisks or
    "[redacted]" stand for it.

    `scheduled_seconds` is when the request should have been sent, None in a closed loop. `promises_usage` tells that
    the answer had to hold usage. `provenance` and `session` are its Work's.
    """

    request_id: str
    arm: str
    level: int
    phase: int
    label: Label
    user: int
    number: int
    dialect: str
    target: str
    task: Task | None
    sent_body: str
    connect_seconds: float | None
    sent_seconds: float
    sent_unix_seconds: float
    status: int | None
    response_headers: Mapping[str, str]
    received: Body
    ended_seconds: float
    outcome: Outcome
    outcome_detail: str
    scheduled_seconds: float | None = None
    path: str = CHAT_PATH
    is_streamed: bool = True
    promises_usage: bool = True
    provenance: Mapping[str, str | int] = field(default_factory=dict)
    session: SessionTurn | None = None

    @property
    def body(self) -> bytes:
        """The response body, as far as it came."""
        return self.received.data

    @property
    def chunks(self) -> tuple[tuple[float, bytes], ...]:
        """The body in pieces, one for each read that brought any, with the time at which it returned."""
        return tuple(self.received.chunks())

    def to_record(self) -> dict[str, Any]:
        """As JSON values. The body is one text, bytes that are no UTF-8 as lone surrogates (surrogateescape)."""
        return {
            "request_id": self.request_id,
            "arm": self.arm,
            "level": self.level,
            "phase": self.phase,
            "label": self.label.value,
            "user": self.user,
            "number": self.number,
            "dialect": self.dialect,
            "target": self.target,
            "task": self.task.to_record() if self.task else None,
            "sent_body": self.sent_body,
            "connect_seconds": self.connect_seconds,
            "sent_seconds": self.sent_seconds,
            "sent_unix_seconds": self.sent_unix_seconds,
            "status": self.status,
            "response_headers": dict(self.response_headers),
            "body": self.body.decode("utf-8", errors="surrogateescape"),
            "chunk_end_bytes": self.received.ends.tolist(),
            "chunk_seconds": self.received.seconds.tolist(),
            "ended_seconds": self.ended_seconds,
            "outcome": self.outcome.value,
            "outcome_detail": self.outcome_detail,
            "scheduled_seconds": self.scheduled_seconds,
            "path": self.path,
            "is_streamed": self.is_streamed,
            "promises_usage": self.promises_usage,
            "provenance": dict(self.provenance),
            "session": asdict(self.session) if self.session else None,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Transcript:
        """The inverse of `to_record`. Raises KeyError, TypeError or ValueError for a record of another shape."""
        values = dict(record)
        body = values.pop("body").encode("utf-8", errors="surrogateescape")
        values["received"] = Body(
            body, array("Q", values.pop("chunk_end_bytes")), array("d", values.pop("chunk_seconds"))
        )
        values["label"] = Label(values["label"])
        values["outcome"] = Outcome(values["outcome"])
        task = values["task"]
        values["task"] = None if task is None else Task.from_record(task, values["sent_body"])
        session = values["session"]
        values["session"] = None if session is None else SessionTurn(**session)
        return cls(**values)
