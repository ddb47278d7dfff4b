"""Frames of the KV transfer: a fixed head, a payload, and the payload's CRC-32.

Head (24 bytes, big-endian): magic `PDKV`, version, kind, two zero bytes, room (unsigned 64 bits), payload length in
bytes, CRC-32 of the payload. A peer is not trusted: a wrong magic, version or kind, or a payload above the limit, is
a FrameError and ends the connection; a wrong checksum only marks the frame, since the next one still begins where it
should.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from .errors import TransferError

MAXIMUM_ROOM: Final = (1 << 63) - 1
# control payloads are small JSON objects; only PAGE frames are larger, by exactly the page size.
MAXIMUM_CONTROL_BYTES: Final = 1 << 16

_MAGIC: Final = b"PDKV"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("!4sBBHQII")
_PAGE_INDEX: Final = struct.Struct("!I")


class FrameError(TransferError):
    """Bytes on the wire that are not this protocol; the connection cannot be read further."""


class FrameKind(IntEnum):
    """Who sends what: decode REGISTERs or CANCELs a room; prefill answers HEADER, PAGE…, DONE, or ABORT."""

    REGISTER = 1
    CANCEL = 2
    HEADER = 3
    PAGE = 4
    DONE = 5
    ABORT = 6


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as read; `intact` is False when the payload's checksum does not fit."""

    kind: FrameKind
    room: int
    payload: bytes
    intact: bool

    def json(self) -> dict[str, Any]:
        """The payload as a JSON object. Raises FrameError when it is anything else."""
        try:
            value = json.loads(self.payload) if self.intact else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise FrameError(f"room {self.room}: the {self.kind.name} frame does not hold an intact JSON object")
        return value

    def page(self) -> tuple[int, bytes]:
        """Page index and page bytes of a PAGE frame. Raises FrameError when the index is missing."""
        if len(self.payload) < _PAGE_INDEX.size:
            raise FrameError(f"room {self.room}: a PAGE frame of {len(self.payload)} bytes has no page index")
        return _PAGE_INDEX.unpack_from(self.payload)[0], self.payload[_PAGE_INDEX.size :]


def encode(kind: FrameKind, room: int, payload: bytes = b"") -> bytes:
    """Bytes of one frame."""
    return _HEAD.pack(_MAGIC, _VERSION, kind, 0, room, len(payload), zlib.crc32(payload)) + payload


def encode_json(kind: FrameKind, room: int, value: dict[str, Any]) -> bytes:
    """Bytes of a control frame."""
    return encode(kind, room, json.dumps(value).encode())


def encode_page(room: int, index: int, page: bytes) -> bytes:
    """Bytes of a PAGE frame."""
    return encode(FrameKind.PAGE, room, _PAGE_INDEX.pack(index) + page)


async def read_frame(reader: asyncio.StreamReader, page_bytes: int) -> Frame:
    """The next frame; `page_bytes` is the exact size of a page in bytes.

    Raises FrameError for bytes that are not a frame, asyncio.IncompleteReadError or OSError when the peer is gone.
    """
    magic, version, kind_number, _, room, length, checksum = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if magic != _MAGIC or version != _VERSION:
        raise FrameError(f"not a KV transfer peer: magic {magic!r}, version {version}")
    try:
        kind = FrameKind(kind_number)
    except ValueError:
        raise FrameError(f"unknown frame kind {kind_number}") from None
    limit = page_bytes + _PAGE_INDEX.size if kind is FrameKind.PAGE else MAXIMUM_CONTROL_BYTES
    if length > limit or room > MAXIMUM_ROOM:
        raise FrameError(
            f"{kind.name} frame of {length} bytes for room {room}: at most {limit} bytes, rooms of 63 bits"
        )
    payload = await reader.readexactly(length)
    return Frame(kind, room, payload, zlib.crc32(payload) == checksum)
