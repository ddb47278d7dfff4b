"""The fast way through a stream: most of its events differ from the one before in a single text.

An event that appended one text, and nothing else, is a template: what stands before the text's JSON string and what
stands behind it. A later event with the same bytes around another JSON string appends that string; JSON leaves no other
reading, which a probe checks once for each template. Every other event takes the full way through `LenientReader`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from .body import Body
from .lenient import LenientReader, told_tokens
from .sse import BYTE_ORDER_MARK, LARGEST_EVENT_BYTES, Event, EventLines, last_line, split_lines
from .texts import parse

_LARGEST_TEMPLATE_BYTES: Final = 4096
# templates that nothing fitted, after which no more are made: the stream's events differ in more than a text.
_MOST_MISSES: Final = 16
_PROBE: Final = b"pdwatch"
_STRING_REST: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"')
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")
_TEXT_KEYS: Final = frozenset({"content", "reasoning_content", "reasoning"})


def read_stream(body: Body, reader: LenientReader) -> None:
    """Feed a whole event stream to the reader, each event with the time of the read that completed it."""
    data = body.data
    has_returns = b"\r" in data
    if has_returns and not data.count(b"\r") == data.count(b"\n") == data.count(b"\r\n"):
        read_stream_fully(body, reader)
    else:
        _read_blocks(body, reader, b"\r\n" if has_returns else b"\n")


def read_stream_fully(body: Body, reader: LenientReader) -> None:
    """The same by the full way only: for streams with mixed line ends, and to hold the fast way against."""
    _finish(body, reader, EventLines(), _start(body, reader), 0)


def _read_blocks(body: Body, reader: LenientReader, newline: bytes) -> None:
    """For streams with one kind of line end, so that an event's end can be found as two of them."""
    data, ends, stamps, defects = body.data, body.ends, body.seconds, reader.defects
    find, starts_with, ends_with, loads = data.find, data.startswith, data.endswith, orjson.loads
    separator, gap = newline * 2, len(newline) * 2
    # a carriage return ends its line at once, so that the last byte of CR LF CR LF completes nothing.
    completing = gap if newline == b"\n" else gap - 1
    lines = EventLines()
    read = misses = lead_length = trail_length = 0
    lead = trail = newline  # no block begins and ends with one
    parts: list[str] = []
    start = _start(body, reader)
    while (stop := find(separator, start)) >= 0:
        end = stop + completing
        while ends[read] < end:
            read += 1
        is_small = stop - start <= LARGEST_EVENT_BYTES
        if starts_with(lead, start) and ends_with(trail, start, stop) and is_small:
            try:
                # with both quotes; where the two are one, in a block that is too short, this is no JSON.
                text = loads(data[start + lead_length : stop - trail_length])
            except orjson.JSONDecodeError:
                pass
            else:
                parts.append(text)
                if text:
                    reader.output_seconds.append(stamps[read])
                misses, start = 0, stop + gap
                continue
        if is_small and starts_with(b"data:", start) and find(newline, start, stop) < 0:
            noted = defects.total
            data_start = start + (6 if starts_with(b" ", start + 5) else 5)
            reader.event(stamps[read], Event(data[data_start:stop], b"", end))
            lead = newline
            if misses < _MOST_MISSES and defects.total == noted and not reader.is_done:
                misses += 1
                if (template := _template(data[start:stop], reader)) is not None:
                    lead, trail, parts = template
                    lead_length, trail_length = len(lead) - 1, len(trail) - 1
        elif _feed(body, reader, lines, start, stop + gap, read):
            lead = newline
        if lines.overflowed:
            break
        # a run of empty lines may be megabytes long.
        run = _LINE_ENDS.match(data, stop + gap) if start == stop else None
        start = run.end() if run else stop + gap
    _finish(body, reader, lines, start, read)


def _start(body: Body, reader: LenientReader) -> int:
    if not body.data.startswith(BYTE_ORDER_MARK):
        return 0
    reader.defects.add("byte_order_mark")
    return len(BYTE_ORDER_MARK)


def _feed(body: Body, reader: LenientReader, lines: EventLines, start: int, stop: int, read: int) -> bool:
    """Take the whole lines of a part of the body, line by line; whether they made an event."""
    has_event = False
    for line, end in split_lines(body.data, start, stop):
        event = lines.add(line, end)
        if lines.overflowed:
            break
        _note_bad_text(reader, lines)
        if event is not None:
            has_event = True
            while body.ends[read] < end:
                read += 1
            reader.event(body.seconds[read], event)
    return has_event


def _finish(body: Body, reader: LenientReader, lines: EventLines, start: int, read: int) -> None:
    """Take what is left of the body, and the event that no empty line ended."""
    if not lines.overflowed:
        _feed(body, reader, lines, start, len(body.data), read)
    rest = None if lines.overflowed else lines.rest(last_line(body.data, start), len(body.data))
    if lines.overflowed:
        reader.defects.add("oversized_event")
        return
    _note_bad_text(reader, lines)
    if rest is not None and rest.data is not None:
        reader.defects.add("unterminated_event", "{}", rest.data)
        if rest.data.strip() == b"[DONE]" or isinstance(parse(rest.data)[0], dict):
            reader.event(body.seconds[-1], rest)


def _note_bad_text(reader: LenientReader, lines: EventLines) -> None:
    if lines.has_bad_text:
        lines.has_bad_text = False
        if not reader.is_done:
            reader.defects.add("bad_text_line")


def _template(block: bytes, reader: LenientReader) -> tuple[bytes, bytes, list[str]] | None:
    """What stands around the one text that the reader's last chunk appended, and where the text went."""
    payload = reader.last_chunk
    if len(block) > _LARGEST_TEMPLATE_BYTES or (hole := _hole(payload)) is None:
        return None
    holder, key = hole
    opening = re.compile(rb'"%s"\s*:\s*"' % key.encode())
    found = opening.findall(block)
    match = opening.search(block)
    closing = match and _STRING_REST.match(block, match.end())
    if match is None or closing is None or len(found) != 1:
        return None
    lead, trail = block[: match.end()], block[closing.end() - 1 :]
    probe, _ = parse((lead + _PROBE + trail)[5:])
    text = holder[key]
    holder[key] = _PROBE.decode()
    is_alike = probe == payload
    holder[key] = text
    return (lead, trail, _target(reader, payload, key)) if is_alike else None


def _hole(payload: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """The one text in a chunk without defects that every later chunk of its like would append; None: there is more."""
    choices = payload.get("choices")
    if not choices or len(choices) != 1 or payload.get("usage") is not None or payload.get("error"):
        return None
    choice: dict[str, Any] = choices[0]
    if choice.get("finish_reason") is not None or told_tokens(choice) is not None:
        return None
    if payload.get("object") == "text_completion":
        return (choice, "text") if choice.get("text") else None
    delta = choice["delta"]
    filled = [key for key, value in delta.items() if value and key != "role"]
    if len(filled) != 1:
        return None
    if filled[0] in _TEXT_KEYS:
        return delta, filled[0]
    entries: list[dict[str, Any]] = delta["tool_calls"] if filled[0] == "tool_calls" else []
    if len(entries) != 1 or entries[0].get("id"):
        return None
    function = entries[0]["function"]
    is_further = function.get("arguments") and not function.get("name") and not function.get("id")
    return (function, "arguments") if is_further else None


def _target(reader: LenientReader, payload: dict[str, Any], key: str) -> list[str]:
    if key == "arguments":
        call = reader.calls.at(payload["choices"][0]["delta"]["tool_calls"][0]["index"])
        return call.arguments if call is not None else []
    return reader.reasoning if key in ("reasoning", "reasoning_content") else reader.content
