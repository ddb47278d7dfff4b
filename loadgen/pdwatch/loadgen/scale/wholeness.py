"""Where zstd frames end, found without unpacking them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Final

import zstandard

from ..errors import JournalCorrupt

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LONGEST_HEAD_BYTES: Final = 18
_BLOCK_HEAD_BYTES: Final = 3
_CHECKSUM_BYTES: Final = 4
_REPEATED_BYTE: Final = 1


def frame_ends(data: bytes | bytearray | mmap.mmap) -> Iterator[int]:
    """The offset after each whole frame, from the first on. Raises JournalCorrupt for what is no frame."""
    start = 0
    while (end := _frame_end(data, start)) is not None:
        yield end
        start = end


def _frame_end(data: bytes | bytearray | mmap.mmap, start: int) -> int | None:
    """The offset after the frame at `start`; None when it is not all there."""
    head = bytes(data[start : start + _LONGEST_HEAD_BYTES])
    if head[: len(_MAGIC)] != _MAGIC[: len(head)]:
        raise JournalCorrupt(f"{head[:4].hex(' ')} begins no frame; this is no file of ours")
    try:
        position = start + zstandard.frame_header_size(head)
        checksum_bytes = _CHECKSUM_BYTES if zstandard.get_frame_parameters(head).has_checksum else 0
    except zstandard.ZstdError:
        # of a head that is whole, the magic number is all that can be wrong.
        return None
    is_last = False
    while not is_last:
        block = int.from_bytes(data[position : position + _BLOCK_HEAD_BYTES], "little")
        if position + _BLOCK_HEAD_BYTES > len(data):
            return None
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        position += _BLOCK_HEAD_BYTES + (1 if kind == _REPEATED_BYTE else size)
    end = position + checksum_bytes
    return end if end <= len(data) else None
