"""The transcript journal: one zstd frame per record, appended and never rewritten.

A record reaches the operating system in one write, so a killed process leaves at most one cut frame at the end, which
the reader passes over. `zstdcat transcripts.jsonl.zst | jq .` shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson
import zstandard

from .errors import JournalCorrupt
from .transcript import Transcript

JOURNAL_NAME: Final = "transcripts.jsonl.zst"
LARGEST_RECORD_BYTES: Final = 256 * 2**20

_BLOCK_BYTES: Final = 64 * 1024
_LEVEL: Final = 3


class JournalWriter:
    """Appends transcripts to a file, which it makes when there is none. Use from one thread."""

    def __init__(self, path: Path) -> None:
        """Raises OSError. A journal that ends in a cut frame must not be appended to."""
        self._file = path.open("ab", buffering=0)
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)

    def append(self, transcript: Transcript) -> None:
        """Write one record; when this returns, killing the process does not lose it."""
        frame = self._compressor.compress(_encode(transcript.to_record()))
        written = self._file.write(frame)
        while written < len(frame):
            written += self._file.write(frame[written:])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_transcripts(path: Path) -> Iterator[Transcript]:
    """Each record of a journal in the order in which the requests ended.

    A last record that is cut off is left out. Raises JournalCorrupt for damage anywhere else, and OSError.
    """
    for line, frame in _frames(path):
        try:
            yield Transcript.from_record(_decode(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalCorrupt(
                f"{path}: record {frame} is no transcript ({error}); keep only the records before it"
            ) from error


def _frames(path: Path) -> Iterator[tuple[bytes, int]]:
    decompressor = zstandard.ZstdDecompressor()
    with path.open("rb") as file:
        pending = b""
        frame = 0
        while pending or (pending := file.read(_BLOCK_BYTES)):
            stream = decompressor.decompressobj()
            parts: list[bytes] = []
            size = 0
            while not stream.eof:
                try:
                    parts.append(stream.decompress(pending))
                except zstandard.ZstdError as error:
                    raise JournalCorrupt(
                        f"{path}: record {frame} is damaged ({error}); keep only the records before it"
                    ) from error
                size += len(parts[-1])
                if size > LARGEST_RECORD_BYTES:
                    raise JournalCorrupt(f"{path}: record {frame} is over {LARGEST_RECORD_BYTES} bytes; not a journal")
                if not stream.eof and not (pending := file.read(_BLOCK_BYTES)):
                    return
            pending = stream.unused_data
            yield b"".join(parts), frame
            frame += 1


def _encode(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # orjson refuses lone surrogates, which stand for bytes of a body that are not UTF-8.
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _decode(line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = json.loads(line)
    if not isinstance(record, dict):
        raise TypeError(f"a {type(record).__name__}")
    return record
