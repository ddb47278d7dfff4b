"""JSON read as RFC 8259 says and no more: what Python's reader forgives is an error here.

Refused: duplicate keys, NaN and Infinity, numbers too large for a double, lone surrogates, anything after the value,
nesting and sizes beyond what an honest tool call needs. Hostile text costs linear time.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pdwatch.correctness.errors import StrictJsonError
from pdwatch.correctness.excerpt import excerpt

MAXIMUM_CHARACTERS = 1_000_000
MAXIMUM_DEPTH = 64
# Python refuses to convert longer integers; 64-bit values have 20 digits.
MAXIMUM_DIGITS = 400

# a string is skipped whole, also one that never ends; possessive, so no text makes it backtrack.
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_strict(text: str, *, maximum_characters: int = MAXIMUM_CHARACTERS, maximum_depth: int = MAXIMUM_DEPTH) -> Any:
    """The one JSON value in `text`. Raises StrictJsonError with one of the codes

    `json_too_large`, `json_too_deep`, `json_invalid`, `json_trailing_data`, `json_duplicate_key`, `json_constant`,
    `json_number_range`, `json_lone_surrogate`.
    """
    if len(text) > maximum_characters:
        raise StrictJsonError("json_too_large", f"{len(text)} characters, more than {maximum_characters}")
    _check_depth(text, maximum_depth)
    try:
        value, end = _DECODER.raw_decode(text, _skip_space(text, 0))
    except json.JSONDecodeError as error:
        near = excerpt(text[max(0, error.pos - 20) : error.pos + 20])
        raise StrictJsonError("json_invalid", f"{error.msg} at character {error.pos}, near {near!r}") from error
    end = _skip_space(text, end)
    if end != len(text):
        raise StrictJsonError("json_trailing_data", f"data after the value at character {end}: {excerpt(text[end:])!r}")
    _check_texts(value)
    return value


def _check_depth(text: str, maximum_depth: int) -> None:
    depth = 0
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in ("{", "["):
            depth += 1
            if depth > maximum_depth:
                raise StrictJsonError(
                    "json_too_deep", f"nested deeper than {maximum_depth} at character {match.start()}"
                )
        elif mark in ("}", "]"):
            depth -= 1


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\n\r":
        position += 1
    return position


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise StrictJsonError("json_duplicate_key", f"the key {excerpt(key)!r} stands twice in one object")
        _check_text(key)
        _check_texts(value)
        result[key] = value
    return result


def _check_texts(value: Any) -> None:
    # objects inside were checked when they were built; only strings and arrays of strings are left.
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, list):
        for item in value:
            _check_texts(item)


def _check_text(text: str) -> None:
    surrogate = _SURROGATE.search(text)
    if surrogate is not None:
        detail = f"half a surrogate pair, U+{ord(surrogate[0]):04X}, in {excerpt(text)!r}"
        raise StrictJsonError("json_lone_surrogate", detail)


def _constant(name: str) -> Any:
    raise StrictJsonError("json_constant", f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise StrictJsonError("json_number_range", f"{excerpt(text)} is too large for a double")
    return value


def _integer(text: str) -> int:
    if len(text) > MAXIMUM_DIGITS:
        raise StrictJsonError("json_number_range", f"an integer of {len(text)} digits, more than {MAXIMUM_DIGITS}")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_integer, strict=True
)
