"""Decode side of the KV transfer: registers rooms, checks every frame, puts pages where they belong."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from dataclasses import asdict

from .errors import TransferError
from .frames import Frame, FrameError, FrameKind, encode, encode_json, read_frame
from .transfer import READ_LIMIT_BYTES, Address, Layout, PageSink, RoomAbandoned, TransferHeader, write_frame

_log = logging.getLogger(__name__)


class _ReceivedRoom:
    """A room on the decode side, from registration to its last frame."""

    def __init__(self, sink: PageSink) -> None:
        self.sink = sink
        self.header: TransferHeader | None = None
        self.written: set[int] = set()
        self.progress = time.monotonic()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refusal: TransferError | None = None

    def take(self, frame: Frame) -> None:
        """Apply one frame; what is wrong with it fails the room, and the rest of the room is drained."""
        self.progress = time.monotonic()
        try:
            if frame.kind is FrameKind.ABORT:
                raise RoomAbandoned(str(frame.json().get("message", "abandoned by the prefill worker"))[:500])
            if frame.kind is FrameKind.DONE:
                self._finish(frame.room)
            elif self.refusal is None:
                self._store(frame)
        except TransferError as error:
            self.refusal = self.refusal or error
        except Exception as error:
            # a defect of this worker's sink costs the one room, not all rooms on the connection.
            _log.exception("room %d: cannot take a %s frame", frame.room, frame.kind.name)
            self.refusal = TransferError(f"room {frame.room}: {type(error).__name__}: {error}")
        if frame.kind in (FrameKind.ABORT, FrameKind.DONE) and not self.ended.done():
            self.ended.set_result(None)

    def _store(self, frame: Frame) -> None:
        if frame.kind is FrameKind.HEADER:
            if self.header is not None:
                raise TransferError(f"room {frame.room}: second header")
            header = TransferHeader.from_json(frame.json())
            self.sink.begin(header)
            self.header = header
            return
        index, page = frame.page()
        if not frame.intact:
            raise TransferError(f"room {frame.room}: checksum of page {index} does not fit its bytes")
        if self.header is None or index >= self.header.pages or index in self.written:
            raise TransferError(f"room {frame.room}: page {index} was not announced, or came twice")
        self.sink.write_page(index, page)
        self.written.add(index)

    def _finish(self, room: int) -> None:
        expected = self.header.pages if self.header is not None else math.inf
        if self.refusal is None and len(self.written) != expected:
            raise TransferError(f"room {room}: transfer ended after {len(self.written)} of {expected} pages")


class TransferReceiver:
    """Decode side: one kept connection per prefill worker, many rooms on each."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._links: dict[Address, asyncio.Task[_Link]] = {}
        self.frames_received = 0

    @property
    def arriving(self) -> bool:
        """True while some room's header has come and its last page has not."""
        return any(
            room.header is not None
            for task in self._links.values()
            if task.done() and not task.cancelled() and task.exception() is None
            for room in task.result().rooms.values()
        )

    async def receive(
        self, address: Address, room: int, sink: PageSink, room_timeout_seconds: float, stall_timeout_seconds: float
    ) -> TransferHeader:
        """Register `room` and return its header once every page is in the sink.

        `room_timeout_seconds` bounds the wait for the header, `stall_timeout_seconds` the wait between two frames.
        Raises TransferError when nothing more will be written, whatever the cause. Cancelling the coroutine leaves
        the room: late frames are dropped.
        """
        state = _ReceivedRoom(sink)
        link = await self._link(address)
        if room in link.rooms:
            raise TransferError(f"room {room} is already being received")
        link.rooms[room] = state
        try:
            await link.write(encode_json(FrameKind.REGISTER, room, asdict(self._layout)))
            while not state.ended.done():
                limit = room_timeout_seconds if state.header is None else stall_timeout_seconds
                remaining = state.progress + limit - time.monotonic()
                if remaining <= 0:
                    await link.write(encode(FrameKind.CANCEL, room))
                    raise TransferError(f"room {room}: nothing came from {address[0]}:{address[1]} for {limit:g} s")
                # wake up in time to see that the header came and the other limit holds.
                await asyncio.wait((state.ended,), timeout=min(remaining, stall_timeout_seconds))
            await state.ended
        finally:
            link.rooms.pop(room, None)
        if state.refusal is not None:
            raise state.refusal
        assert state.header is not None
        return state.header

    async def cancel(self, address: Address, room: int) -> None:
        """Tell the prefill worker that `room` will never be registered; a failure to tell is not an error."""
        with contextlib.suppress(TransferError):
            await (await self._link(address)).write(encode(FrameKind.CANCEL, room))

    async def close(self) -> None:
        """Drop all connections."""
        for task in self._links.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().writer.close()
            task.cancel()

    async def _link(self, address: Address) -> _Link:
        task = self._links.get(address)
        if task is None:
            task = self._links[address] = asyncio.create_task(self._connect(address))
            task.add_done_callback(functools.partial(self._connected, address))
        return await asyncio.shield(task)

    def _connected(self, address: Address, task: asyncio.Task[_Link]) -> None:
        # whatever went wrong, the next request tries again.
        if (task.cancelled() or task.exception() is not None) and self._links.get(address) is task:
            del self._links[address]

    async def _connect(self, address: Address) -> _Link:
        try:
            reader, writer = await asyncio.open_connection(*address, limit=READ_LIMIT_BYTES)
        except (OSError, ValueError) as error:
            # ValueError: a host that is no name at all, such as one with two dots in a row.
            raise TransferError(f"cannot connect to the prefill worker at {address[0]}:{address[1]}: {error}") from None
        link = _Link(writer)
        link.reading = asyncio.create_task(self._read(address, link, reader))
        return link

    async def _read(self, address: Address, link: _Link, reader: asyncio.StreamReader) -> None:
        reason = "connection ended"
        try:
            while True:
                frame = await read_frame(reader, self._layout.page_bytes)
                self.frames_received += 1
                state = link.rooms.get(frame.room)
                if state is not None:
                    state.take(frame)
                await asyncio.sleep(0)
        except FrameError as error:
            reason = str(error)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            del self._links[address]
            link.writer.close()
            for room, state in link.rooms.items():
                if not state.ended.done():
                    state.ended.set_exception(
                        TransferError(f"room {room}: lost the prefill worker at {address[0]}:{address[1]}: {reason}")
                    )


class _Link:
    """One connection to a prefill worker and the rooms on it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.rooms: dict[int, _ReceivedRoom] = {}
        self.reading: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Send one frame. Raises TransferError when the connection is gone."""
        try:
            await write_frame(self.writer, data)
        except OSError as error:
            raise TransferError(f"connection to the prefill worker lost: {error}") from error
