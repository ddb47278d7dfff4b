"""What happened to one request: everything sent, every byte received and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
    before the first byte of the request is written, on an open connection; `connect_seconds` is the duration of opening
    it before that, None on a kept one. `chunks` are the body's bytes as they arrived, each with the time its read
    returned. `response_headers` has lower-case names; repeated ones are joined with ", ". Cookies and headers of
    authentication are never part of it.
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
    chunks: tuple[tuple[float, bytes], ...]
    ended_seconds: float
    outcome: Outcome
    outcome_detail: str

    @property
    def body(self) -> bytes:
        """The response body, as far as it came."""
        return b"".join(data for _, data in self.chunks)

    def to_record(self) -> dict[str, Any]:
        """As JSON values. The body is one text, bytes that are no UTF-8 as lone surrogates (surrogateescape)."""
        ends, total = [], 0
        for _, data in self.chunks:
            total += len(data)
            ends.append(total)
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
            "chunk_end_bytes": ends,
            "chunk_seconds": [seconds for seconds, _ in self.chunks],
            "ended_seconds": self.ended_seconds,
            "outcome": self.outcome.value,
            "outcome_detail": self.outcome_detail,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Transcript:
        """The inverse of `to_record`. Raises KeyError, TypeError or ValueError for a record of another shape."""
        values = dict(record)
        body = values.pop("body").encode("utf-8", errors="surrogateescape")
        ends = values.pop("chunk_end_bytes")
        starts = [0, *ends[:-1]]
        pieces = (body[start:end] for start, end in zip(starts, ends, strict=True)) if ends else ()
        values["chunks"] = tuple(zip(values.pop("chunk_seconds"), pieces, strict=True))
        values["label"] = Label(values["label"])
        values["outcome"] = Outcome(values["outcome"])
        task = values["task"]
        values["task"] = None if task is None else Task.from_record(task, values["sent_body"])
        return cls(**values)
