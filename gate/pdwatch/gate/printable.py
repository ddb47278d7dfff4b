"""Text from servers and errors, made safe for a terminal."""

from __future__ import annotations

MAXIMUM_CHARACTERS = 2_000


def printable(text: str) -> str:
    """`text` on one line with control characters as escapes; what is past 2000 characters is counted, not shown."""
    if text.isprintable() and len(text) <= MAXIMUM_CHARACTERS:
        return text
    # the help must come without loading what judges
    from pdwatch.correctness import excerpt

    return excerpt(text, MAXIMUM_CHARACTERS)
