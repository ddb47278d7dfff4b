"""Everything that the workers record, put into one journal and one file of rows as it comes.

Frames are appended as they are, so nothing is packed again and nothing is lost: a frame is in the file or is told of as
cut off. Times in them stay on each worker's own clock; `workers.json` has the offsets.
"""

from __future__ import annotations

import contextlib
import mmap
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import zstandard

from ..errors import JournalCorrupt, LoadgenError, PlanError
from ..journal import JOURNAL_NAME
from ..row import LARGEST_ROW_BYTES, ROWS_NAME, RequestRow, decode_row
from .gaps import GAPS_NAME, with_gaps
from .shipping import Incoming
from .wholeness import frame_ends

KEPT: Final = (JOURNAL_NAME, ROWS_NAME)
# a row's gaps: two tokens and their times would have to come every microsecond for hours to be over this.
_LARGEST_GAPS_BYTES: Final = 2**30

OnRow = Callable[[int, RequestRow], None]


@dataclass(slots=True)
class _Books:
    """What has come of one worker."""

    files: dict[str, Incoming] = field(default_factory=lambda: {name: Incoming() for name in (*KEPT, GAPS_NAME)})
    rows: deque[RequestRow] = field(default_factory=deque)
    gaps: deque[bytes] = field(default_factory=deque)


class Ledger:
    """Writes OUT/transcripts.jsonl.zst and OUT/requests.jsonl.zst; `on_row` gets each worker's rows with their gaps."""

    def __init__(self, directory: Path, workers: int, on_row: OnRow) -> None:
        """Raises PlanError when the files cannot be made or are there already."""
        self._directory = directory
        self._on_row = on_row
        self._books = [_Books() for _ in range(workers)]
        self._files = contextlib.ExitStack()
        self._outputs: dict[str, BinaryIO] = {}
        self._unpacker = zstandard.ZstdDecompressor()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name in KEPT:
                self._outputs[name] = self._files.enter_context((directory / name).open("xb", buffering=0))
        except FileExistsError as error:
            raise PlanError(f"{error.filename} is there already; give an empty folder") from None
        except OSError as error:
            raise PlanError(f"{directory} cannot be written to ({error.strerror}); give another folder") from None

    def add(self, worker: int, piece: Mapping[str, Any]) -> None:
        """Take a piece of a worker's file. Raises JournalCorrupt."""
        name = piece["name"]
        self._keep(worker, name, self._books[worker].files[name].add(piece))

    def salvage(self, worker: int, directory: Path) -> None:
        """Take what a worker that died left in its folder and did not ship. Raises JournalCorrupt."""
        for name, incoming in self._books[worker].files.items():
            with contextlib.suppress(FileNotFoundError), (directory / name).open("rb") as file:
                file.seek(incoming.size_bytes)
                self._keep(worker, name, incoming.add_bytes(file.read()))
        self.flush(worker)

    def flush(self, worker: int) -> None:
        """Give out rows whose gaps will never come."""
        books = self._books[worker]
        while books.rows:
            self._on_row(worker, books.rows.popleft())

    def check(self, worker: int, totals: list[Mapping[str, Any]]) -> None:
        """Hold what has come against what a worker says that it shipped. Raises LoadgenError."""
        files = self._books[worker].files
        for total in totals:
            incoming = files[total["name"]]
            if not incoming.is_whole(total):
                raise LoadgenError(
                    f"worker {worker} shipped {total['size_bytes']} bytes of {total['name']}, and "
                    f"{incoming.size_bytes} came, or others; its own copy is the true one"
                )

    def counts(self, worker: int) -> Mapping[str, int]:
        """Records of each kept file that a worker contributed, and bytes of cut ones."""
        files = self._books[worker].files
        return {
            "transcripts": files[JOURNAL_NAME].frames,
            "requests": files[ROWS_NAME].frames,
            "cut_bytes": sum(files[name].rest_bytes for name in KEPT),
        }

    def close(self) -> None:
        """Close the files and count what is in them. Raises LoadgenError when that is not what came."""
        self._files.close()
        for name in KEPT:
            came = sum(books.files[name].frames for books in self._books)
            found = _count_frames(self._directory / name)
            if found != came:
                raise LoadgenError(f"{self._directory / name} holds {found} records, and {came} came from the workers")

    def _keep(self, worker: int, name: str, frames: list[bytes]) -> None:
        if not frames:
            return
        if name in self._outputs:
            data = memoryview(b"".join(frames))
            while data:
                data = data[self._outputs[name].write(data) :]
        books = self._books[worker]
        if name == ROWS_NAME:
            books.rows.extend(self._row(frame) for frame in frames)
        elif name == GAPS_NAME:
            books.gaps.extend(self._unpacked(frame, _LARGEST_GAPS_BYTES) for frame in frames)
        while books.rows and books.gaps:
            self._on_row(worker, with_gaps(books.rows.popleft(), books.gaps.popleft()))

    def _row(self, frame: bytes) -> RequestRow:
        return decode_row(self._unpacked(frame, LARGEST_ROW_BYTES))

    def _unpacked(self, frame: bytes, largest_bytes: int) -> bytes:
        size_bytes = zstandard.get_frame_parameters(frame).content_size
        if size_bytes > largest_bytes:
            raise JournalCorrupt(f"a record of {size_bytes} bytes came, over {largest_bytes}")
        return self._unpacker.decompress(frame)


def _count_frames(path: Path) -> int:
    if not path.stat().st_size:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        ends = array("Q", frame_ends(data))
        if not ends or ends[-1] != len(data):
            raise LoadgenError(f"{path} ends in a cut record")
        return len(ends)
