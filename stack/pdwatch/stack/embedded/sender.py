"""Prefill side of the KV transfer: rooms, and the pages sent to the decode worker that registered them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import asdict

from .errors import TransferError
from .frames import Frame, FrameError, FrameKind, encode, encode_json, encode_page, read_frame
from .transfer import (
    MAXIMUM_ROOMS,
    READ_LIMIT_BYTES,
    Layout,
    PageSource,
    RoomAbandoned,
    RoomInUse,
    TransferHeader,
    TransferReport,
    write_frame,
)

_log = logging.getLogger(__name__)


class _SentRoom:
    """A room on the prefill side: named by its HTTP request, by the decode worker, or already by both."""

    def __init__(self) -> None:
        self.registered: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        # a room that fails before anyone waits for it is not an error of this process.
        self.registered.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.claimed = False


class TransferSender:
    """Prefill side: waits for decode workers to register rooms and sends them their pages."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # called with a registered room that the decode worker no longer wants.
        self.cancelled: Callable[[int], None] = lambda room: None
        self._rooms: dict[int, _SentRoom] = {}
        # rooms that ended before their decode worker came, oldest first.
        self._refused: dict[int, str] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=READ_LIMIT_BYTES)

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()

    def claim(self, room: int) -> None:
        """Take `room` for a request, until it is sent or refused. Raises RoomInUse when another request has it."""
        state = self._rooms.setdefault(room, _SentRoom())
        if state.claimed:
            raise RoomInUse(f"room {room} is already in use by another request: choose another one")
        state.claimed = True

    async def wait_registered(self, room: int, timeout_seconds: float) -> None:
        """Return once a decode worker has pages for a claimed room.

        Raises TransferError on time-out, cancel or loss; the room must be refused then.
        """
        try:
            # not wait_for: in Python 3.11 it swallows a cancellation that comes together with the result.
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(self._rooms[room].registered)
        except TimeoutError:
            raise TransferError(f"room {room}: no decode worker came within {timeout_seconds:g} s") from None

    async def send(self, room: int, header: TransferHeader, source: PageSource) -> TransferReport:
        """Send header and pages of a registered room, and forget the room.

        Raises TransferError when the decode worker is gone; the room must be refused then.
        """
        started = time.perf_counter()
        writer = self._writer(room)
        try:
            await write_frame(writer, encode_json(FrameKind.HEADER, room, header.to_json()))
            for index in range(source.pages):
                await write_frame(writer, encode_page(room, index, source.read(index)))
                await asyncio.sleep(0)
            await write_frame(writer, encode(FrameKind.DONE, room))
        except OSError as error:
            raise TransferError(f"room {room}: connection to the decode worker lost: {error}") from error
        del self._rooms[room]
        return TransferReport(source.pages * self._layout.page_bytes, time.perf_counter() - started)

    async def refuse(self, room: int, message: str) -> None:
        """Tell the decode worker, if one came, that nothing will be sent for `room`, and forget the room."""
        try:
            writer = self._writer(room)
        except TransferError:
            # the decode worker may still come for it.
            self._refused[room] = message
            if len(self._refused) > MAXIMUM_ROOMS:
                del self._refused[next(iter(self._refused))]
            return
        finally:
            self._rooms.pop(room, None)
        with contextlib.suppress(OSError):
            await write_frame(writer, encode_json(FrameKind.ABORT, room, {"message": message}))

    def _writer(self, room: int) -> asyncio.StreamWriter:
        state = self._rooms.get(room)
        if state is None or not state.registered.done():
            raise TransferError(f"room {room}: no decode worker has registered it")
        return state.registered.result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while True:
                await self._handle(await read_frame(reader, 0), writer)
        except FrameError as error:
            _log.warning("transfer connection closed: %s", error)
        except (asyncio.IncompleteReadError, OSError):
            _log.info("transfer connection ended")
        finally:
            self._connections.discard(writer)
            writer.close()
            for room in list(self._rooms):
                self._drop_unclaimed(room, writer)

    async def _handle(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        room = frame.room
        if frame.kind is FrameKind.CANCEL:
            state = self._rooms.get(room)
            if state is not None and not state.registered.done():
                state.registered.set_exception(RoomAbandoned(f"room {room}: cancelled by the decode worker"))
            self._drop_unclaimed(room, writer)
            self.cancelled(room)
        elif frame.kind is FrameKind.REGISTER:
            fault = self._register(frame, writer)
            if fault is not None:
                await write_frame(writer, encode_json(FrameKind.ABORT, room, {"message": fault}))
        else:
            raise FrameError(f"a prefill worker takes no {frame.kind.name} frame")

    def _register(self, frame: Frame, writer: asyncio.StreamWriter) -> str | None:
        offered = frame.json()
        if offered != asdict(self._layout):
            return f"room {frame.room}: KV layouts differ, prefill {asdict(self._layout)}, decode {offered}"
        if frame.room in self._refused:
            return self._refused.pop(frame.room)
        if frame.room not in self._rooms and len(self._rooms) >= MAXIMUM_ROOMS:
            return f"room {frame.room}: {MAXIMUM_ROOMS} rooms are open already"
        state = self._rooms.setdefault(frame.room, _SentRoom())
        if state.registered.done():
            return f"room {frame.room} is already registered"
        state.registered.set_result(writer)
        return None

    def _drop_unclaimed(self, room: int, writer: asyncio.StreamWriter) -> None:
        """Forget a room that this decode worker registered and whose request has not come."""
        state = self._rooms.get(room)
        if state is not None and not state.claimed and state.registered.result() is writer:
            del self._rooms[room]
