"""Append-only journal of server samples: one zstd frame per record.

A killed writer loses at most the record in hand. Transcripts and reference scores have journals of their own,
in the portions that write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
import zstandard

MAXIMUM_RECORD_BYTES = 64 * 2**20

_BLOCK_BYTES = 64 * 1024


class JournalWriter:
    """Writes JSON records; each is in the hands of the operating system when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)

    def append(self, record: dict[str, Any]) -> None:
        """Append one record as one frame."""
        frame = memoryview(self._compressor.compress(orjson.dumps(record)))
        while frame:
            frame = frame[self._file.write(frame) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Records in order, up to the first that is torn or damaged; an absent file has none."""
    if not path.exists():
        return
    decompressor = zstandard.ZstdDecompressor()
    with path.open("rb") as file:
        pending = b""
        while pending or (pending := file.read(_BLOCK_BYTES)):
            stream = decompressor.decompressobj()
            record = bytearray()
            while not stream.eof:
                try:
                    record += stream.decompress(pending)
                except zstandard.ZstdError:
                    return
                if len(record) > MAXIMUM_RECORD_BYTES:
                    return
                if not stream.eof and not (pending := file.read(_BLOCK_BYTES)):
                    return
            pending = stream.unused_data
            yield orjson.loads(bytes(record))
