"""What the file of rows leaves out: the gaps between tokens and between chunks.

Percentiles over all drivers need every gap. A driver's clerk writes them to a file of its own, one frame a row in the
order of the rows; it goes to the leader, and is not kept.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..clerk import Clerk
from ..frames import FrameWriter
from ..messages import Ended, Opening, Recorded
from ..row import RequestRow

GAPS_NAME: Final = "gaps.zst"

# how many gaps there are between tokens and between chunks, −1 for "no value".
_HEAD: Final = struct.Struct("<ii")


def encode_gaps(row: RequestRow) -> bytes:
    """The gaps of a row."""
    both = (row.inter_token_seconds, row.inter_chunk_seconds)
    lengths = (-1 if gaps is None else len(gaps) for gaps in both)
    return _HEAD.pack(*lengths) + b"".join(gaps.tobytes() for gaps in both if gaps is not None)


def with_gaps(row: RequestRow, data: bytes) -> RequestRow:
    """The row with its gaps. Raises ValueError for bytes that `encode_gaps` never gives."""
    if len(data) < _HEAD.size:
        raise ValueError(f"{len(data)} bytes hold no gaps")
    tokens, chunks = _HEAD.unpack_from(data)
    middle = _HEAD.size + max(0, tokens) * 8
    if middle + max(0, chunks) * 8 != len(data):
        raise ValueError(f"{len(data)} bytes do not hold {tokens} and {chunks} gaps")
    between_tokens, between_chunks = array("d", data[_HEAD.size : middle]), array("d", data[middle:])
    return replace(
        row,
        inter_token_seconds=None if tokens < 0 else between_tokens,
        inter_chunk_seconds=None if chunks < 0 else between_chunks,
    )


class GapWriter(FrameWriter[RequestRow]):
    """Appends the gaps of rows to a file, which it makes when there is none."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encode_gaps)


class SharedClerk(Clerk):
    """The clerk of a driver among others: it writes the gaps too."""

    _gaps_file: GapWriter

    def _open(self, message: Opening) -> Iterable[Any]:
        self._gaps_file = self._files.enter_context(GapWriter(Path(message.directory) / GAPS_NAME))
        return super()._open(message)

    def _record(self, ended: Ended) -> Iterator[Recorded]:
        for recorded in super()._record(ended):
            self._gaps_file.append(self._rows[-1])
            yield recorded
