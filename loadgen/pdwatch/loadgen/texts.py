"""Text and JSON as servers send them, read without ever raising."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import orjson

NOT_JSON: Final = object()
"""What `parse_loosely` gives for bytes that are no JSON to anyone; no JSON value is this."""


def joined(parts: Iterable[str]) -> str:
    """The text of its parts, with surrogate halves that came in two of them made whole, and lone ones replaced."""
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def parse_loosely(data: bytes) -> Any:
    """A JSON value as loose readers take it (NaN, lone surrogates), or NOT_JSON."""
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return NOT_JSON


def parse(data: bytes) -> tuple[Any, bool]:
    """A JSON value or NOT_JSON, and whether only loose readers take it."""
    try:
        return orjson.loads(data), False
    except orjson.JSONDecodeError:
        value = parse_loosely(data)
        return value, value is not NOT_JSON


def dump(value: Any) -> str:
    """A JSON value's text; where it is too deep for that, a description."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "<nested too deeply>"
