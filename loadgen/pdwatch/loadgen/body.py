"""The bytes of a response's body and when they arrived."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Body:
    """A body as one piece. Read i had brought the bytes before `ends[i]` when it returned at `seconds[i]`.

    `ends` ascends strictly, so a read that brought nothing of the body is not among them; the last is the length of
    `data`. Two big arrays rather than a tuple of pieces, because these travel between processes.
    """

    data: bytes
    ends: array[int]
    seconds: array[float]

    @classmethod
    def from_chunks(cls, chunks: Iterable[tuple[float, bytes]]) -> Body:
        """A body from its pieces with their times; empty pieces are left out."""
        pieces: list[bytes] = []
        ends, seconds, total = array("Q"), array("d"), 0
        for when, piece in chunks:
            if piece:
                pieces.append(piece)
                total += len(piece)
                ends.append(total)
                seconds.append(when)
        return cls(b"".join(pieces), ends, seconds)

    def chunks(self) -> Iterator[tuple[float, bytes]]:
        """The pieces with their times."""
        start = 0
        for end, when in zip(self.ends, self.seconds, strict=True):
            yield when, self.data[start:end]
            start = end
