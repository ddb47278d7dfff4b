"""The transcript journal: one zstd frame per record, appended and never rewritten.

`zstdcat transcripts.jsonl.zst | jq .` shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from .errors import JournalCorrupt
from .frames import FrameWriter, read_frames
from .transcript import Transcript

JOURNAL_NAME: Final = "transcripts.jsonl.zst"
LARGEST_RECORD_BYTES: Final = 256 * 2**20


class JournalWriter(FrameWriter[Transcript]):
    """Appends transcripts to a file, which it makes when there is none. Use from one thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda transcript: _encode(transcript.to_record()))


def read_transcripts(path: Path) -> Iterator[Transcript]:
    """Each record of a journal in the order in which the requests ended.

    A last record that is cut off is left out. Raises JournalCorrupt for damage anywhere else, and OSError.
    """
    for number, line in enumerate(read_frames(path, LARGEST_RECORD_BYTES)):
        try:
            yield Transcript.from_record(_decode(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalCorrupt(
                f"{path}: record {number} is no transcript ({error}); keep only the records before it"
            ) from error


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
