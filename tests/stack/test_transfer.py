"""KV transfer over real sockets: pages arrive as sent, and whatever goes wrong is told and survived."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from pdwatch.stack.embedded.errors import TransferError
from pdwatch.stack.embedded.frames import FrameError, FrameKind, encode, encode_json, encode_page, read_frame
from pdwatch.stack.embedded.receiver import TransferReceiver
from pdwatch.stack.embedded.request import TokenLogprob
from pdwatch.stack.embedded.sender import TransferSender
from pdwatch.stack.embedded.transfer import Layout, RoomAbandoned, RoomInUse, TransferHeader

LAYOUT = Layout("same", 4096)
ROOM = (1 << 63) - 1
LOGPROB = TokenLogprob(7, -0.25, top=((-0.25, 7), (float("-inf"), 8)), chosen=((-3.5, 9),))
Filter = Callable[[bytes], bytes]


class Pages:
    """A prompt's pages; each page is filled with its own number."""

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def read(self, page_index: int) -> bytes:
        return bytes([page_index]) * LAYOUT.page_bytes


class Sink:
    def __init__(self) -> None:
        self.header: TransferHeader | None = None
        self.pages: dict[int, bytes] = {}
        self.begun = asyncio.Event()

    def begin(self, header: TransferHeader) -> None:
        self.header = header
        self.begun.set()

    def write_page(self, page_index: int, page: bytes) -> None:
        self.pages[page_index] = page


def header(pages: int) -> TransferHeader:
    return TransferHeader(tokens=pages * 64, pages=pages, first_token=7, first_logprob=LOGPROB, cached_tokens=64)


def bound() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@contextlib.asynccontextmanager
async def pair(layout: Layout = LAYOUT) -> AsyncIterator[tuple[TransferSender, TransferReceiver, tuple[str, int]]]:
    listener = bound()
    sender, receiver = TransferSender(LAYOUT), TransferReceiver(layout)
    await sender.start(listener)
    try:
        yield sender, receiver, listener.getsockname()
    finally:
        await receiver.close()
        await sender.close()


@contextlib.asynccontextmanager
async def fake_prefill(answer: bytes, *, then_close: bool) -> AsyncIterator[tuple[str, int]]:
    """A prefill side that reads the registration and answers with fixed bytes."""
    released = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader, 0)
        writer.write(answer)
        await writer.drain()
        if not then_close:
            await released.wait()
        writer.close()

    server = await asyncio.start_server(serve, sock=bound())
    try:
        yield server.sockets[0].getsockname()
    finally:
        released.set()
        server.close()


async def receive(receiver: TransferReceiver, address: tuple[str, int], sink: Sink, room: int = ROOM) -> TransferHeader:
    return await receiver.receive(address, room, sink, 5.0, 5.0)


async def registered(sender: TransferSender, room: int, timeout_seconds: float = 5.0) -> None:
    """What a prefill request does with its room before it is computed."""
    sender.claim(room)
    await sender.wait_registered(room, timeout_seconds)


async def test_pages_and_first_token_arrive_as_sent() -> None:
    async with pair() as (sender, receiver, address):
        sink = Sink()
        receiving = asyncio.create_task(receive(receiver, address, sink))
        await registered(sender, ROOM)
        report = await sender.send(ROOM, header(5), Pages(5))
        assert await receiving == sink.header == header(5)
        assert sink.pages == {index: bytes([index]) * 4096 for index in range(5)}
        assert report.total_bytes == 5 * 4096


async def test_rooms_share_one_connection() -> None:
    async with pair() as (sender, receiver, address):
        sinks = [Sink() for _ in range(20)]
        receiving = [asyncio.create_task(receive(receiver, address, sink, room)) for room, sink in enumerate(sinks)]
        for room in range(20):
            await registered(sender, room)
        await asyncio.gather(*(sender.send(room, header(room % 7), Pages(room % 7)) for room in range(20)))
        await asyncio.gather(*receiving)
        assert [len(sink.pages) for sink in sinks] == [room % 7 for room in range(20)]


async def test_the_event_loop_runs_between_pages() -> None:
    async with pair() as (sender, receiver, address):
        sink = Sink()
        receiving = asyncio.create_task(receive(receiver, address, sink))
        await registered(sender, ROOM)
        sending = asyncio.create_task(sender.send(ROOM, header(60), Pages(60)))
        await sink.begun.wait()
        # an abort could come here: the header is in, most pages are not.
        assert receiver.arriving
        assert len(sink.pages) < 60
        await sending
        await receiving
        assert not receiver.arriving


async def test_a_registration_before_the_request_is_kept() -> None:
    async with pair() as (sender, receiver, address):
        sink = Sink()
        receiving = asyncio.create_task(receive(receiver, address, sink, 3))
        # another room on the same connection shows that the first registration was read.
        probe = asyncio.create_task(receive(receiver, address, Sink(), 4))
        await registered(sender, 4)
        await registered(sender, 3)
        await sender.send(3, header(1), Pages(1))
        assert (await receiving).pages == 1
        probe.cancel()


async def test_a_refused_room_is_abandoned_whoever_comes_first() -> None:
    async with pair() as (sender, receiver, address):
        await sender.refuse(1, "aborted before")
        with pytest.raises(RoomAbandoned, match="aborted before"):
            await receive(receiver, address, Sink(), 1)
        receiving = asyncio.create_task(receive(receiver, address, Sink(), 2))
        await registered(sender, 2)
        await sender.refuse(2, "aborted after")
        with pytest.raises(RoomAbandoned, match="aborted after"):
            await receiving


async def test_a_cancelled_room_is_given_up_by_the_sender() -> None:
    async with pair() as (sender, receiver, address):
        waiting = asyncio.create_task(registered(sender, ROOM))
        await asyncio.sleep(0)
        await receiver.cancel(address, ROOM)
        with pytest.raises(RoomAbandoned, match="cancelled by the decode worker"):
            await waiting


async def test_a_registration_that_no_request_claims_ends_with_its_cancel() -> None:
    async with pair() as (sender, receiver, address):
        cancelled = asyncio.Event()
        sender.cancelled = lambda room: cancelled.set()
        receiving = asyncio.create_task(receive(receiver, address, Sink(), 3))
        probe = asyncio.create_task(receive(receiver, address, Sink(), 4))
        # the later room's registration shows that the first one was read.
        await registered(sender, 4)
        receiving.cancel()
        await receiver.cancel(address, 3)
        await cancelled.wait()
        # the room is not the first decode worker's any more: another one may have it.
        other = TransferReceiver(LAYOUT)
        again = asyncio.create_task(receive(other, address, Sink(), 3))
        await registered(sender, 3)
        await sender.send(3, header(1), Pages(1))
        assert (await again).pages == 1
        await other.close()
        probe.cancel()


async def test_a_cancel_leaves_a_room_that_another_decode_worker_registered() -> None:
    async with pair() as (sender, receiver, address):
        cancelled = asyncio.Event()
        sender.cancelled = lambda room: cancelled.set()
        receiving = asyncio.create_task(receive(receiver, address, Sink(), 3))
        probe = asyncio.create_task(receive(receiver, address, Sink(), 4))
        await registered(sender, 4)
        other = TransferReceiver(LAYOUT)
        await other.cancel(address, 3)
        await cancelled.wait()
        await registered(sender, 3)
        await sender.send(3, header(1), Pages(1))
        assert (await receiving).pages == 1
        await other.close()
        probe.cancel()


async def test_a_room_in_use_is_refused_to_a_second_request_until_it_is_sent() -> None:
    async with pair() as (sender, receiver, address):
        sink = Sink()
        receiving = asyncio.create_task(receive(receiver, address, sink))
        await registered(sender, ROOM)
        sending = asyncio.create_task(sender.send(ROOM, header(5), Pages(5)))
        await sink.begun.wait()
        with pytest.raises(RoomInUse, match=f"room {ROOM} is already in use"):
            sender.claim(ROOM)
        await sending
        assert (await receiving).pages == 5
        sender.claim(ROOM)


async def test_layouts_must_be_equal() -> None:
    async with pair(Layout("other", 4096)) as (_, receiver, address):
        with pytest.raises(TransferError, match="KV layouts differ"):
            await receive(receiver, address, Sink())


async def test_a_room_nobody_registers_times_out() -> None:
    async with pair() as (sender, _, _address):
        with pytest.raises(TransferError, match=r"room 9: no decode worker came within 0\.05 s"):
            await registered(sender, 9, 0.05)


async def test_a_room_nobody_sends_times_out() -> None:
    async with pair() as (_, receiver, address):
        with pytest.raises(TransferError, match=r"nothing came from 127\.0\.0\.1:\d+ for 0\.05 s"):
            await receiver.receive(address, ROOM, Sink(), 0.05, 5.0)


async def test_a_transfer_that_stalls_times_out() -> None:
    opening = encode_json(FrameKind.HEADER, ROOM, header(2).to_json()) + encode_page(ROOM, 0, Pages(1).read(0))
    async with fake_prefill(opening, then_close=False) as address:
        receiver = TransferReceiver(LAYOUT)
        with pytest.raises(TransferError, match=r"for 0\.05 s"):
            await receiver.receive(address, ROOM, Sink(), 5.0, 0.05)
        await receiver.close()


async def test_a_worker_that_is_not_there_is_named() -> None:
    listener = bound()
    address = listener.getsockname()
    listener.close()
    receiver = TransferReceiver(LAYOUT)
    with pytest.raises(TransferError, match=rf"cannot connect to the prefill worker at 127\.0\.0\.1:{address[1]}"):
        await receive(receiver, address, Sink())
    # asking again tries again.
    with pytest.raises(TransferError, match="cannot connect"):
        await receive(receiver, address, Sink())


async def test_a_host_that_is_no_name_fails_its_request_only() -> None:
    async with pair() as (sender, receiver, address):
        for _ in range(2):
            with pytest.raises(TransferError, match=r"cannot connect to the prefill worker at a\.\.b:1"):
                await receive(receiver, ("a..b", 1), Sink())
        assert not receiver.arriving
        receiving = asyncio.create_task(receive(receiver, address, Sink()))
        await registered(sender, ROOM)
        await sender.send(ROOM, header(1), Pages(1))
        assert (await receiving).pages == 1


async def test_a_connection_that_fails_unexpectedly_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as (sender, receiver, address):
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "open_connection", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await receive(receiver, address, Sink())
        receiving = asyncio.create_task(receive(receiver, address, Sink()))
        await registered(sender, ROOM)
        await sender.send(ROOM, header(1), Pages(1))
        assert (await receiving).pages == 1


class BrokenSink(Sink):
    def write_page(self, page_index: int, page: bytes) -> None:
        raise ZeroDivisionError("a defect of the sink")


async def test_a_defect_of_one_sink_leaves_the_other_rooms() -> None:
    async with pair() as (sender, receiver, address):
        broken = asyncio.create_task(receive(receiver, address, BrokenSink(), 1))
        sound = asyncio.create_task(receive(receiver, address, Sink(), 2))
        for room in (1, 2):
            await registered(sender, room)
            await sender.send(room, header(1), Pages(1))
        with pytest.raises(TransferError, match="ZeroDivisionError: a defect of the sink"):
            await broken
        assert (await sound).pages == 1


def flipped(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


PAGE = encode_page(ROOM, 0, b"\0" * 4096)
HEADER = encode_json(FrameKind.HEADER, ROOM, header(1).to_json())
DONE = encode(FrameKind.DONE, ROOM)
INFINITE = json.dumps(header(1).to_json()).replace('"token": 7', '"token": Infinity')
DEFECTS = {
    "flipped bit": (HEADER + flipped(PAGE) + DONE, "checksum of page 0"),
    "page missing": (HEADER + DONE, "after 0 of 1 pages"),
    "page twice": (HEADER + PAGE + PAGE + DONE, "came twice"),
    "page not announced": (HEADER + encode_page(ROOM, 1, b"\0" * 4096) + DONE, "page 1 was not announced"),
    "page before header": (PAGE + HEADER + DONE, "page 0 was not announced"),
    "two headers": (HEADER + HEADER + PAGE + DONE, "second header"),
    "no header": (DONE, "after 0 of inf pages"),
    "header of text": (encode(FrameKind.HEADER, ROOM, b"hello") + DONE, "JSON object"),
    "header without fields": (encode_json(FrameKind.HEADER, ROOM, {"tokens": 1}) + DONE, "not a transfer header"),
    "header with text counts": (
        encode_json(FrameKind.HEADER, ROOM, header(1).to_json() | {"pages": "1"}) + DONE,
        "not a transfer header",
    ),
    "header with an infinite token": (
        encode(FrameKind.HEADER, ROOM, INFINITE.encode()) + DONE,
        "not a transfer header",
    ),
    "deep JSON": (encode(FrameKind.HEADER, ROOM, b"[" * 60000) + DONE, "JSON object"),
    "not a frame": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a KV transfer peer"),
    "unknown kind": (struct.pack("!4sBBHQII", b"PDKV", 1, 99, 0, ROOM, 0, 0), "unknown frame kind 99"),
    "too long": (struct.pack("!4sBBHQII", b"PDKV", 1, 4, 0, ROOM, 1 << 31, 0), "at most 4100 bytes"),
    "connection lost": (HEADER, "lost the prefill worker"),
}


@pytest.mark.parametrize(("answer", "named"), DEFECTS.values(), ids=DEFECTS.keys())
async def test_a_defect_fails_the_room_and_is_named(answer: bytes, named: str) -> None:
    async with fake_prefill(answer, then_close=True) as address:
        receiver = TransferReceiver(LAYOUT)
        with pytest.raises(TransferError, match=named):
            await receive(receiver, address, Sink())
        await receiver.close()


HOSTILE = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "page to prefill": PAGE,
    "registration of text": encode(FrameKind.REGISTER, 1, b"x"),
    "room of 64 bits": struct.pack("!4sBBHQII", b"PDKV", 1, 1, 0, 1 << 63, 0, 0),
    "half a head": b"PDKV\1",
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_peer_only_loses_its_connection(sent: bytes) -> None:
    async with pair() as (sender, receiver, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        receiving = asyncio.create_task(receive(receiver, address, Sink()))
        await registered(sender, ROOM)
        await sender.send(ROOM, header(1), Pages(1))
        assert (await receiving).pages == 1


async def test_a_room_registered_twice_is_refused_once() -> None:
    async with pair() as (sender, receiver, address):
        receiving = asyncio.create_task(receive(receiver, address, Sink()))
        await registered(sender, ROOM)
        other = TransferReceiver(LAYOUT)
        with pytest.raises(RoomAbandoned, match="already registered"):
            await receive(other, address, Sink())
        await other.close()
        await sender.send(ROOM, header(1), Pages(1))
        assert (await receiving).pages == 1


async def test_a_decode_worker_that_is_gone_fails_the_transfer() -> None:
    async with pair() as (sender, receiver, address):
        receiving = asyncio.create_task(receive(receiver, address, Sink()))
        await registered(sender, ROOM)
        await receiver.close()
        with pytest.raises(TransferError, match="lost"):
            await receiving
        with pytest.raises(TransferError, match="connection to the decode worker lost"):
            # more than the socket buffers hold, so that the loss is seen.
            await sender.send(ROOM, header(5000), Pages(200))


async def test_frames_survive_the_round_trip() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode_page(5, 3, b"abc"))
    frame = await read_frame(reader, 3)
    assert (frame.kind, frame.room, frame.intact, frame.page()) == (FrameKind.PAGE, 5, True, (3, b"abc"))
    reader.feed_data(encode(FrameKind.PAGE, 5, b"ab"))
    with pytest.raises(FrameError, match="no page index"):
        (await read_frame(reader, 3)).page()
