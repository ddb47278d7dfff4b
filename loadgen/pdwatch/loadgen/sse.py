"""Server-sent events from bytes, as the WHATWG HTML standard §9.2.6 parses them.

The events do not depend on how the bytes were cut. Data stays bytes: what it should decode as is the reader's matter,
and bytes that are no UTF-8 are evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LARGEST_EVENT_BYTES: Final = 4 * 2**20

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event: `data` lines joined by line feeds; `type` is empty when the stream named none."""

    data: bytes
    type: bytes = b""
    last_id: bytes = b""


class EventStream:
    """An incremental parser of one stream.

    A line, or an event's lines together, over `largest_event_bytes` end the parsing: `overflowed` turns true and no
    further event comes.
    """

    def __init__(self, largest_event_bytes: int = LARGEST_EVENT_BYTES) -> None:
        self.overflowed = False
        self._largest_event_bytes = largest_event_bytes
        self._buffer = b""
        self._at_start = True
        self._after_return = False
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._type = b""
        self._last_id = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Events that these bytes complete."""
        if self.overflowed:
            return []
        buffer = self._buffer + chunk if self._buffer else chunk
        if self._at_start:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._buffer = buffer
                return []
            buffer = buffer.removeprefix(_BOM)
            self._at_start = False
        if self._after_return and buffer:
            # a return has ended its line already; a feed right after it belongs to it.
            buffer = buffer.removeprefix(b"\n")
            self._after_return = False
        if b"\r" in buffer:
            self._after_return = buffer.endswith(b"\r")
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._buffer = buffer.split(b"\n")
        events: list[Event] = []
        for line in lines:
            if self._is_over(line):
                return events
            if not line:
                if (event := self._dispatch()) is not None:
                    events.append(event)
            else:
                self._field(line)
        self._is_over(self._buffer)
        return events

    @property
    def unfinished(self) -> Event | None:
        """The event that no empty line ended, which the standard drops when the stream ends."""
        lines = [b"data: " + value for value in self._data] + [b"event: " + self._type, self._buffer]
        rest = EventStream(self._largest_event_bytes)
        events = rest.feed(b"\n".join([b":", *lines, b"", b""]))
        return events[0] if events and not self.overflowed else None

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(line)
        elif field == b"event":
            self._type = value
        elif field == b"id" and b"\0" not in value:
            self._last_id = value

    def _dispatch(self) -> Event | None:
        event = Event(b"\n".join(self._data), self._type, self._last_id) if self._data else None
        self._data, self._data_bytes, self._type = [], 0, b""
        return event

    def _is_over(self, line: bytes) -> bool:
        self.overflowed = self._data_bytes + len(line) > self._largest_event_bytes
        return self.overflowed
