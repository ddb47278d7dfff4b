"""One driver's part of a run that several drivers share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """Of everything that is numbered from 0 on, the driver `index` of `of` has number index, index + of, …"""

    index: int = 0
    of: int = 1

    def count(self, total: int) -> int:
        """How many of the first `total` numbers are its own."""
        return (total - self.index + self.of - 1) // self.of

    def number(self, place: int) -> int:
        """Its own number `place`, counted from 0."""
        return place * self.of + self.index

    def has(self, number: int) -> bool:
        """Whether a number is its own."""
        return number % self.of == self.index
