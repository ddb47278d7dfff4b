"""Shares in words."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share as a percentage with two significant digits, `0.0073` as `0.73 %`."""
    if share >= 0.0995:
        return f"{share:.0%}".replace("%", " %")
    return f"{share * 100:.2g} %"
