"""Removal of secrets from what other servers tell about themselves and from our own command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "«hidden»"

_SECRET_KEY = re.compile(
    r"(^|_|-)(api[_-]?keys?|secrets?|passwords?|passwd|credentials?|authorization|bearer|private_?key"
    r"|(access|auth|hf|admin|refresh)_?tokens?)($|_|-)",
    re.IGNORECASE,
)
_MAXIMUM_TEXT = 4_096
_MAXIMUM_ITEMS = 2_000


def redact(value: Any, depth: int = 0) -> Any:
    """A copy of a JSON value with secrets hidden and its size bounded; deeper than 12 levels is dropped."""
    if depth > 12:
        return None
    if isinstance(value, dict):
        items = list(value.items())[:_MAXIMUM_ITEMS]
        return {
            str(key): HIDDEN if item is not None and _SECRET_KEY.search(str(key)) else redact(item, depth + 1)
            for key, item in items
        }
    if isinstance(value, list):
        return [redact(item, depth + 1) for item in value[:_MAXIMUM_ITEMS]]
    if isinstance(value, str):
        return redact_url(value[:_MAXIMUM_TEXT])
    return value


def redact_url(text: str) -> str:
    """Hide user and password of a URL; other text comes back as it is."""
    if "://" not in text or "@" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return HIDDEN
    if "@" not in parts.netloc:
        return text
    return urlunsplit(parts._replace(netloc=f"{HIDDEN}@{parts.netloc.rpartition('@')[2]}"))


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Our own command line with URLs' passwords hidden, also in `name=url` forms."""
    return ["=".join(redact_url(part) for part in argument.split("=", 1)) for argument in arguments]
