"""Files that grow on a worker's disk, brought to the leader in pieces as they grow."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import JournalCorrupt
from .wholeness import frame_ends

PIECE_BYTES: Final = 256 * 1024


class Outgoing:
    """The worker's side of one file, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._offset = 0
        self._digest = hashlib.sha256()

    def pieces(self) -> Iterator[Mapping[str, Any]]:
        """What has been added since, in pieces for `Incoming.add`."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            while data := file.read(PIECE_BYTES):
                yield {"name": self.name, "offset": self._offset, "data": data, "crc32": zlib.crc32(data)}
                self._offset += len(data)
                self._digest.update(data)

    def total(self) -> Mapping[str, Any]:
        """What has been shipped in all."""
        return {"name": self.name, "size_bytes": self._offset, "sha256": self._digest.hexdigest()}


class Incoming:
    """The leader's side of one file. `frames` counts the whole zstd frames that have come.

    A record that is cut off, as a killed process leaves one, stays in `rest_bytes` and goes nowhere.
    """

    def __init__(self) -> None:
        self.frames = 0
        self.size_bytes = 0
        self._digest = hashlib.sha256()
        self._rest = bytearray()

    @property
    def rest_bytes(self) -> int:
        """Bytes of a frame that is not all there."""
        return len(self._rest)

    def add(self, piece: Mapping[str, Any]) -> list[bytes]:
        """The frames that a piece completes. Raises JournalCorrupt for a damaged or misplaced piece."""
        data = piece["data"]
        if piece["offset"] != self.size_bytes or zlib.crc32(data) != piece["crc32"]:
            raise JournalCorrupt(
                f"{piece['name']}: the piece at {piece['offset']} came damaged or out of place (at {self.size_bytes})"
            )
        return self.add_bytes(data)

    def add_bytes(self, data: bytes) -> list[bytes]:
        """The frames that these bytes complete. Raises JournalCorrupt."""
        self.size_bytes += len(data)
        self._digest.update(data)
        self._rest += data
        frames = []
        start = 0
        for end in frame_ends(self._rest):
            frames.append(bytes(self._rest[start:end]))
            start = end
        del self._rest[:start]
        self.frames += len(frames)
        return frames

    def is_whole(self, total: Mapping[str, Any]) -> bool:
        """Whether what has come is what was sent."""
        return bool(self.size_bytes == total["size_bytes"] and self._digest.hexdigest() == total["sha256"])
