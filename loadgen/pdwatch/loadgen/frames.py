"""Append-only files of zstd frames, one per record.

A record reaches the operating system in one write, so a killed process leaves at most one cut frame at the end, which
the reader passes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import zstandard

from .errors import JournalCorrupt

_BLOCK_BYTES: Final = 64 * 1024
_LEVEL: Final = 1

Record = TypeVar("Record")


class FrameWriter(Generic[Record]):
    """Appends records to a file, which it makes when there is none. Use from one thread."""

    def __init__(self, path: Path, encode: Callable[[Record], bytes], *, must_be_new: bool = False) -> None:
        """Raises OSError. A file that ends in a cut frame must not be appended to."""
        self._encode = encode
        self._file = path.open("xb" if must_be_new else "ab", buffering=0)
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)

    def append(self, record: Record) -> None:
        """Write one record; when this returns, killing the process does not lose it."""
        frame = memoryview(self._compressor.compress(self._encode(record)))
        while frame:
            frame = frame[self._file.write(frame) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_frames(path: Path, largest_bytes: int) -> Iterator[bytes]:
    """Each record in order; a last one that is cut off is left out.

    Raises JournalCorrupt for damage anywhere else and for a record over `largest_bytes`, and OSError.
    """
    decompressor = zstandard.ZstdDecompressor()
    with path.open("rb") as file:
        pending = b""
        number = 0
        while pending or (pending := file.read(_BLOCK_BYTES)):
            stream = decompressor.decompressobj()
            record = bytearray()
            while not stream.eof:
                try:
                    record += stream.decompress(pending)
                except zstandard.ZstdError as error:
                    raise JournalCorrupt(
                        f"{path}: record {number} is damaged ({error}); keep only the records before it"
                    ) from error
                if len(record) > largest_bytes:
                    raise JournalCorrupt(f"{path}: record {number} is over {largest_bytes} bytes; not a journal")
                if not stream.eof and not (pending := file.read(_BLOCK_BYTES)):
                    return
            pending = stream.unused_data
            yield bytes(record)
            number += 1
