"""Append-only journal of server samples: one zstd frame per record.

A killed writer loses at most the record in hand. Transcripts and reference scores have journals of their own,
in the portions that write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from pdwatch.loadgen import FrameWriter, JournalCorrupt, read_frames

MAXIMUM_RECORD_BYTES = 64 * 2**20


class JournalWriter(FrameWriter[dict[str, Any]]):
    """Writes JSON records to a new file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, orjson.dumps, must_be_new=True)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Records in order, up to the first that is torn or damaged; an absent file has none."""
    if not path.exists():
        return
    try:
        for record in read_frames(path, MAXIMUM_RECORD_BYTES):
            yield orjson.loads(record)
    except JournalCorrupt:
        # samples are a picture beside the evidence: what came before the damage is still worth showing.
        return
