"""Recorded traffic, to be sent again at its own times.

Two forms, told apart by the first line:

- Mooncake's: `{"timestamp": milliseconds, "input_length": tokens, "output_length": tokens, "hash_ids": [block, …]}`
- plain: `{"timestamp_seconds": seconds, "body": {a request}}`, or with the two lengths instead of the body
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from .errors import PlanError

LONGEST_LINE_BYTES: Final = 16 * 2**20
MOST_TOKENS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace: seconds after the first one, and either its body or its lengths in tokens.

    `hash_ids` name the blocks of its prompt, of which equal ones hold equal tokens; None where the trace has none.
    """

    offset_seconds: float
    input_length: int | None
    output_length: int | None
    hash_ids: tuple[int, ...] | None
    body: Mapping[str, Any] | None


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace, in order. Raises PlanError that names the line, and the remedy."""
    reader = _Reader(path)
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE_BYTES + 1):
                reader.number += 1
                if len(line) > LONGEST_LINE_BYTES:
                    raise reader.error(f"is over {LONGEST_LINE_BYTES >> 20} MiB long; split its request")
                if line.strip():
                    yield reader.request(line)
    except OSError as error:
        raise PlanError(f"trace {path} cannot be read ({error.strerror}); give the path of a JSONL file") from None
    if reader.first_seconds is None:
        raise PlanError(f"trace {path} holds no request; give a JSONL file with one a line")


def read_offsets(path: Path) -> array[float]:
    """Seconds after the first request at which each is due. Raises PlanError."""
    return array("d", (request.offset_seconds for request in read_trace(path)))


class _Reader:
    def __init__(self, path: Path) -> None:
        self.number = 0
        self.first_seconds: float | None = None
        self._path = path
        self._is_mooncake = False
        self._last_seconds = 0.0

    def error(self, complaint: str) -> PlanError:
        return PlanError(f"trace {self._path} line {self.number} {complaint}")

    def request(self, line: bytes) -> TraceRequest:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise self.error(f"is not JSON ({error}); write one object a line") from None
        if not isinstance(record, dict):
            raise self.error(f"holds {_shown(record)}, not an object; write one object a line")
        if self.first_seconds is None:
            self._is_mooncake = "timestamp" in record
        seconds = self._seconds(record)
        if self.first_seconds is None:
            self.first_seconds = self._last_seconds = seconds
        if seconds < self._last_seconds:
            raise self.error("is before the line above in time; sort the trace by its time stamps")
        self._last_seconds = seconds
        body = record.get("body")
        if body is not None and not isinstance(body, dict):
            raise self.error(f"has the body {_shown(body)}; write the request as an object")
        lengths = self._length(record, "input_length"), self._length(record, "output_length")
        if body is None and None in lengths:
            raise self.error("has neither a body nor input_length and output_length; give one or the other")
        return TraceRequest(seconds - self.first_seconds, *lengths, self._hash_ids(record), body)

    def _seconds(self, record: Mapping[str, Any]) -> float:
        name, unit = ("timestamp", 1e-3) if self._is_mooncake else ("timestamp_seconds", 1.0)
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            told = f"has {_shown(value)} for {name}" if name in record else f"has no {name}"
            raise self.error(f"{told}; every line needs a number of {'milli' * self._is_mooncake}seconds")
        return float(value) * unit

    def _length(self, record: Mapping[str, Any], name: str) -> int | None:
        value = record.get(name)
        if value is not None and (type(value) is not int or not 0 <= value <= MOST_TOKENS):
            raise self.error(f"has {_shown(value)} for {name}; give a whole number of tokens, at most {MOST_TOKENS}")
        return value

    def _hash_ids(self, record: Mapping[str, Any]) -> tuple[int, ...] | None:
        value = record.get("hash_ids")
        if value is None:
            return None
        if not isinstance(value, list) or any(type(block) is not int for block in value):
            raise self.error(f"has {_shown(value)} for hash_ids; give a list of whole numbers")
        return tuple(value)


def _shown(value: object) -> str:
    return f"{value!r:.60}"
