"""Events of a Chrome trace, one after the other: a trace of hundreds of megabytes is read in a few megabytes of memory.

A trace comes from elsewhere and may be cut off, damaged or made to harm: bytes, events, the length of one event and
its nesting are bounded, and whatever is no trace ends in TraceInvalid.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from ..errors import TraceInvalid

_CHUNK_BYTES: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_SPACE: Final = " \t\n\r"
# characters of a number of which a beginning would be taken for the whole
_LONGEST_NUMBER: Final = 64


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """What is read of a trace at most. `bytes` counts after decompression."""

    bytes: int = 8 << 30
    events: int = 50_000_000
    event_characters: int = 4 << 20


DEFAULT_LIMITS: Final = TraceLimits()


def read_events(path: Path, limits: TraceLimits = DEFAULT_LIMITS) -> Iterator[Mapping[str, Any]]:
    """The events of a trace of torch.profiler, gzipped or not. Raises TraceInvalid, also in the midst of them."""
    try:
        with path.open("rb") as raw:
            is_gzipped = raw.peek(2)[:2] == _GZIP_MAGIC
            with closing(gzip.GzipFile(fileobj=raw) if is_gzipped else raw) as file:
                yield from _Scanner(file, path, limits).events()
    except (OSError, EOFError, zlib.error) as error:
        raise TraceInvalid(f"the trace {path} cannot be read: {error}") from error


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


class _Scanner:
    """Walks through the outermost object or array and decodes one event at a time."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, path: Path, limits: TraceLimits) -> None:
        self._file = file
        self._path = path
        self._limits = limits
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        self._to_text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._at = 0
        self._bytes = 0
        self._is_ended = False

    def events(self) -> Iterator[Mapping[str, Any]]:
        first = self._next_character("a trace")
        if first == "[":
            # the other form of the format: only the events
            self._at += 1
            yield from self._elements()
            self._finish()
            return
        if first != "{":
            raise self._invalid("it is neither an object nor an array")
        self._at += 1
        found = False
        while self._next_character("a key or `}`") != "}":
            key = self._value()
            if self._next_character("`:`") != ":":
                raise self._invalid("a key without a value")
            self._at += 1
            if key == "traceEvents" and self._next_character("the events") == "[":
                self._at += 1
                found = True
                yield from self._elements()
            else:
                self._value()
            if self._next_character("`,` or `}`") == ",":
                self._at += 1
            elif self._text[self._at] != "}":
                raise self._invalid("neither `,` nor `}` after a value")
        self._at += 1
        if not found:
            raise self._invalid("it has no traceEvents")
        self._finish()

    def _elements(self) -> Iterator[Mapping[str, Any]]:
        count = 0
        while self._next_character("an event or `]`") != "]":
            event = self._value()
            count += 1
            if count > self._limits.events:
                raise self._invalid(f"it has more than {self._limits.events} events")
            if isinstance(event, dict):
                yield event
            if self._next_character("`,` or `]`") == ",":
                self._at += 1
            elif self._text[self._at] != "]":
                raise self._invalid("neither `,` nor `]` after an event")
        self._at += 1

    def _finish(self) -> None:
        """Nothing but space is left. This also checks the sum at the end of a gzip."""
        while True:
            if self._text[self._at :].strip(_SPACE):
                raise self._invalid("something follows its end")
            self._at = len(self._text)
            if not self._read_on():
                return

    def _value(self) -> Any:
        """The value that begins here."""
        self._next_character("a value")
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                # most likely the value goes on in the next chunk
                if len(self._text) - self._at > self._limits.event_characters:
                    raise self._invalid(f"a value is longer than {self._limits.event_characters} characters") from error
                if not self._read_on():
                    raise self._invalid(f"it is cut off or damaged ({type(error).__name__})") from error
                continue
            except ValueError as error:
                raise self._invalid(str(error)) from error
            if isinstance(value, int | float) and end > len(self._text) - _LONGEST_NUMBER and not self._is_ended:
                # it may go on: `1` of `1.5e3` is a number too
                self._read_on()
                continue
            self._at = end
            return value

    def _next_character(self, expected: str) -> str:
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if character not in _SPACE:
                    return character
                self._at += 1
            if not self._read_on():
                raise self._invalid(f"it ends where {expected} should be")

    def _read_on(self) -> bool:
        """Append the next chunk, forgetting what lies behind; False at the end."""
        if self._is_ended:
            return False
        chunk = self._file.read(_CHUNK_BYTES)
        self._bytes += len(chunk)
        if self._bytes > self._limits.bytes:
            raise self._invalid(f"it has more than {self._limits.bytes >> 20} MiB")
        self._is_ended = not chunk
        more = self._to_text.decode(chunk, final=self._is_ended)
        self._text = self._text[self._at :] + more
        self._at = 0
        return not self._is_ended or bool(more)

    def _invalid(self, reason: str) -> TraceInvalid:
        return TraceInvalid(f"{self._path} is no trace of torch.profiler: {reason}")
