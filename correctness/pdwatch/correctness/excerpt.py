"""Hostile text made safe to print: short, on one line, without control characters."""

from __future__ import annotations

import unicodedata

EXCERPT_CHARACTERS = 160

# what a terminal or a report would act upon instead of showing: controls, formats (bidi overrides), surrogates.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def excerpt(text: str, limit: int = EXCERPT_CHARACTERS) -> str:
    """At most `limit` characters of `text`, each unprintable one as its escape; a cut says how much is missing."""
    shown = "".join(_printable(character) for character in text[:limit])
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit} more characters)"


def _printable(character: str) -> str:
    if unicodedata.category(character) in _UNPRINTABLE:
        return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
    return character
