"""Hostile text made visible: what a browser would hide, act upon or fold is shown as a marked symbol.

Escaping is Jinja's; here only the choice is made of what is plain and what is a symbol.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pdwatch.correctness import ByteRange, Difference

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# formats (bidi overrides, zero width), surrogates, private use and unassigned code points
_HIDDEN = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text; `symbol` is what stands for it when it is not plain, `changed` that it differs."""

    text: str
    code: str | None = None
    changed: bool = False


def visible(text: str, limit: int = 4_096) -> list[Span]:
    """At most `limit` characters of `text` as spans; a cut is said."""
    spans = list(_spans(text[:limit], changed=False))
    if len(text) > limit:
        spans.append(Span(f"… {len(text) - limit} more characters", code="cut"))
    return spans


def plain(text: str) -> str:
    """`text` with every character that is not plain replaced by its escape; line breaks stay."""
    return "".join(character if character == "\n" else _symbol(character) or character for character in text)


def both_sides(difference: Difference) -> tuple[list[Span], list[Span]]:
    """Expected and received text with the differing bytes marked, widened to whole characters."""
    expected = _marked(difference.expected, [(part.expected_start, part.expected_end) for part in difference.ranges])
    received = _marked(difference.received, [(part.received_start, part.received_end) for part in difference.ranges])
    return expected, received


def first_difference(difference: Difference) -> str | None:
    """`byte 37: 41 42 became 58`, of the first differing range; None without one."""
    if not difference.ranges:
        return None
    part: ByteRange = difference.ranges[0]
    left = _hexadecimal(difference.expected, part.expected_start, part.expected_end)
    right = _hexadecimal(difference.received, part.received_start, part.received_end)
    if not left:
        return f"byte {part.received_start}: {right} was added"
    return (
        f"byte {part.expected_start}: {left} became {right}"
        if right
        else f"byte {part.expected_start}: {left} is missing"
    )


def _hexadecimal(text: str, start: int, end: int) -> str:
    content = _bytes(text)[start:end]
    return content[:12].hex(" ") + (" …" if len(content) > 12 else "")


def _marked(text: str, ranges: Iterable[tuple[int, int]]) -> list[Span]:
    content = _bytes(text)
    spans: list[Span] = []
    position = 0
    for start, end in sorted(ranges):
        start, end = max(_boundary_before(content, start), position), _boundary_after(content, end)
        spans += _spans(_text(content[position:start]), changed=False)
        if end > start:
            spans += _spans(_text(content[start:end]), changed=True)
        elif start == end and start >= position:
            # nothing stands here, but something does on the other side
            spans.append(Span("", code="gap", changed=True))
        position = max(position, end)
    return spans + list(_spans(_text(content[position:]), changed=False))


def _spans(text: str, *, changed: bool) -> Iterator[Span]:
    plain = ""
    for character in text:
        symbol = _symbol(character)
        if symbol is None:
            plain += character
            continue
        if plain:
            yield Span(plain, changed=changed)
            plain = ""
        yield Span(symbol, code=f"U+{ord(character):04X}", changed=changed)
        if character == "\n":
            plain = "\n"
    if plain:
        yield Span(plain, changed=changed)


def _symbol(character: str) -> str | None:
    """An escape in ASCII, which every font has; None for plain characters."""
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\x{code:02x}"
    if character == "\ufffd":
        return character
    if 0xDC80 <= code <= 0xDCFF:
        # a byte that is no UTF-8, as surrogateescape keeps it
        return f"\\x{code - 0xDC00:02x}"
    if unicodedata.category(character) in _HIDDEN:
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return None


def _boundary_before(content: bytes, position: int) -> int:
    while 0 < position < len(content) and content[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _boundary_after(content: bytes, position: int) -> int:
    while 0 < position < len(content) and content[position] & 0xC0 == 0x80:
        position += 1
    return position


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")
