"""Which bytes of an answer differ from the expected ones, for a report to mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

# the matcher is quadratic at worst; an honest answer is far shorter.
COMPARED_BYTES = 4_096
MAXIMUM_RANGES = 32


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`expected[expected_start:expected_end]` became `received[received_start:received_end]`, in bytes of UTF-8."""

    expected_start: int
    expected_end: int
    received_start: int
    received_end: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Expected and received text with the ranges that differ. The texts are raw, cut at 4,096 bytes: escape them."""

    expected: str
    received: str
    ranges: tuple[ByteRange, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "expected": self.expected,
            "received": self.received,
            "ranges": [
                [part.expected_start, part.expected_end, part.received_start, part.received_end] for part in self.ranges
            ],
        }


def answer_text(content: str, calls: Sequence[tuple[str, str]]) -> str:
    """An answer as one text: its content, then each call on a line as `name{arguments}`."""
    lines = [content] if content else []
    return "\n".join([*lines, *(name + arguments for name, arguments in calls)])


def differ(expected: str, received: str) -> Difference | None:
    """Where two texts differ; None when they do not."""
    if expected == received:
        return None
    left, right = _bytes(expected)[:COMPARED_BYTES], _bytes(received)[:COMPARED_BYTES]
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    ranges = [ByteRange(*positions) for tag, *positions in matcher.get_opcodes() if tag != "equal"]
    return Difference(
        left.decode("utf-8", errors="replace"), right.decode("utf-8", errors="replace"), tuple(ranges[:MAXIMUM_RANGES])
    )


def bytes_missing(expected: str, received: str) -> int | None:
    """How many bytes were dropped from `expected` to make `received`; None when dropping alone does not make it."""
    left, right = _bytes(expected), _bytes(received)
    if len(right) >= len(left):
        return None
    remaining = iter(left)
    return len(left) - len(right) if all(byte in remaining for byte in right) else None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")
