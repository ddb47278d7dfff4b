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
    """Hide user, password, query and fragment of a URL; other text comes back as it is."""
    if "://" not in text or not set("@?#") & set(text):
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return HIDDEN
    if "@" in parts.netloc:
        parts = parts._replace(netloc=f"{HIDDEN}@{parts.netloc.rpartition('@')[2]}")
    return urlunsplit(parts._replace(query=parts.query and HIDDEN, fragment=parts.fragment and HIDDEN))


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Our own command line with URLs' passwords and queries hidden, also in `name=url` forms."""
    return [_redact_argument(argument) for argument in arguments]


def _redact_argument(argument: str) -> str:
    name, separator, value = argument.partition("=")
    # the first `=` of a bare URL is in its query
    return redact_url(argument) if "://" in name else f"{name}{separator}{redact_url(value)}"
