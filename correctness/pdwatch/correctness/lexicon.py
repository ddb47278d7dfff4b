"""Text that never belongs into an answer: template markup, broken characters, runs without end.

Markup is listed by model family. DeepSeek's uses U+FF5C (fullwidth vertical line) and U+2581 (lower one eighth block),
which look like `|` and `_` and are neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# thresholds of correctness.md §2.4: the longest honest run in the task family is four (a repeated letter of a code).
MAXIMUM_RUN = 20
MAXIMUM_PERIOD = 32
MAXIMUM_REPEATED = 64
SCANNED_CHARACTERS = 65_536

MARKUP: dict[str, str] = {
    "embedded": r"<(?:BOS|EOS|SYS|USR|AST|CALLS?|ARG|END|PAD|2[67]\d)>",
    "deepseek": "</?｜DSML｜|<｜[^｜<>]{1,40}｜>",
    "chatml": r"<\|[a-zA-Z0-9_]{1,40}\|>",
    "tags": r"</?(?:tool_calls?|tool_response|function_calls?|think|invoke|arg_key|arg_value)\b[^<>]{0,80}>",
}

_MARKUP = re.compile("|".join(MARKUP.values()))
_RUN = re.compile(rf"(.)\1{{{MAXIMUM_RUN - 1},}}", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# raw bytes that were not UTF-8 are kept as surrogates in a transcript.
_BROKEN = re.compile("[\ufffd\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Blemish:
    """Something in a text that a healthy answer does not hold: a stable code and where it starts, in characters."""

    code: str
    position: int
    text: str


def blemishes(text: str, allowed: str = "") -> tuple[Blemish, ...]:
    """The first blemish of each kind in the first 65,536 characters.

    `allowed` is text that legitimately holds such things (the request's own prompt): markup and runs that stand there
    are no blemish.
    """
    scanned = text[:SCANNED_CHARACTERS]
    found = [
        _first_character("control_character", _CONTROL, scanned),
        _first_character("broken_utf8", _BROKEN, scanned),
        _first_match("markup", _MARKUP, scanned, allowed),
        _first_match("run", _RUN, scanned, allowed),
        _repetition(scanned, allowed),
    ]
    return tuple(blemish for blemish in found if blemish is not None)


def first_markup(text: str) -> int | None:
    """Where the first special-token markup starts, in characters; None when there is none."""
    match = _MARKUP.search(text)
    return None if match is None else match.start()


def _first_character(code: str, pattern: re.Pattern[str], text: str) -> Blemish | None:
    match = pattern.search(text)
    return None if match is None else Blemish(code, match.start(), f"U+{ord(match[0]):04X}")


def _first_match(code: str, pattern: re.Pattern[str], text: str, allowed: str) -> Blemish | None:
    for match in pattern.finditer(text):
        if match[0] not in allowed:
            return Blemish(code, match.start(), match[0][:80])
    return None


def _repetition(text: str, allowed: str) -> Blemish | None:
    """A tail of at least 64 characters that repeats a unit of 2 to 32, at least four times."""
    tail = text[-MAXIMUM_REPEATED:]
    if len(tail) < MAXIMUM_REPEATED:
        return None
    for period in range(2, min(MAXIMUM_PERIOD, len(tail) // 4) + 1):
        unit = tail[-period:]
        if tail[period:] == tail[:-period] and len(set(unit)) > 1 and tail not in allowed:
            return Blemish("repetition", len(text) - len(tail), unit)
    return None
