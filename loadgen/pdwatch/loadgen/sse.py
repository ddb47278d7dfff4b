"""Server-sent events from bytes, as the WHATWG HTML standard §9.2.6 parses them.

Data stays bytes: what it should decode as is the reader's matter, and bytes that are no UTF-8 are evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LARGEST_EVENT_BYTES: Final = 4 * 2**20
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_LINE_ENDS: Final = re.compile(rb"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Event:
    """What an empty line completed: `data` lines joined by line feeds; `type` is empty when the stream named none.

    `end` is the offset after the byte that completed it. `data` is None where fields but no data stood before the empty
    line: the standard dispatches nothing then, and the official SDK an event that it fails on.
    """

    data: bytes | None
    type: bytes = b""
    end: int = 0


class EventLines:
    """Takes a stream's lines and gives events. An event over `largest_event_bytes` ends the parsing: `overflowed`."""

    def __init__(self, largest_event_bytes: int = LARGEST_EVENT_BYTES) -> None:
        self.overflowed = False
        self.has_bad_text = False
        self._largest_event_bytes = largest_event_bytes
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._type = b""
        self._has_id = False
        self._has_ended_on_id = False
        self._has_retry = False

    def add(self, line: bytes, end: int = 0) -> Event | None:
        """Take a line without its end, which stands before offset `end`; the event that it completes, if it does."""
        if not line:
            return self._dispatch(end)
        self._data_bytes += len(line)
        if self._data_bytes > self._largest_event_bytes:
            self.overflowed = True
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            return None
        self._data_bytes -= len(line)
        if field == b"event":
            self._type = value
        elif field == b"id" and b"\0" not in value:
            self._has_id = bool(value)
        elif field == b"retry" and value.isdigit():
            self._has_retry = True
        if not line.isascii() and not _is_text(line):
            self.has_bad_text = True
        return None

    def rest(self, line: bytes, end: int) -> Event | None:
        """The event that no empty line ended, `line` being the unfinished last one; the standard drops it."""
        if line:
            self.add(line, end)
        return self._dispatch(end) if self._data and not self.overflowed else None

    def _dispatch(self, end: int) -> Event | None:
        event = None
        if self._data:
            event = Event(b"\n".join(self._data), self._type, end)
        elif self._type or self._has_retry:
            event = Event(None, self._type, end)
        elif self._has_id and not self._has_ended_on_id:
            # an id is kept from event to event: to the SDK every later empty line ends an event. Told once.
            self._has_ended_on_id = True
            event = Event(None, b"", end)
        self._data, self._data_bytes, self._type, self._has_retry = [], 0, b"", False
        return event


def split_lines(data: bytes, start: int, stop: int) -> Iterator[tuple[bytes, int]]:
    """The whole lines of `data[start:stop]` without their ends, each with the offset after the byte that ended it.

    A carriage return ends its line at once, and a line feed right after it belongs to it. What is left is `last_line`.
    """
    search = _LINE_END.search
    while match := search(data, start, stop):
        line, start = data[start : match.start()], match.end()
        yield line, match.start() + 1
        if not line and (run := _LINE_ENDS.match(data, start, stop)):
            # a run of empty lines says no more than one more, and may be megabytes long.
            start = run.end()
            yield b"", run.start() + 1


def last_line(data: bytes, start: int) -> bytes:
    """What stands after the last line end at or after `start`."""
    after = max(data.rfind(b"\n", start), data.rfind(b"\r", start))
    return data[after + 1 if after >= 0 else start :]


def read_events(data: bytes, *, drops_mark: bool = True, lines: EventLines | None = None) -> Iterator[Event]:
    """All whole events of a stream; `lines`, when given, tells afterwards whether it overflowed."""
    lines = EventLines() if lines is None else lines
    start = len(BYTE_ORDER_MARK) if drops_mark and data.startswith(BYTE_ORDER_MARK) else 0
    for line, end in split_lines(data, start, len(data)):
        event = lines.add(line, end)
        if lines.overflowed:
            return
        if event is not None:
            yield event


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
