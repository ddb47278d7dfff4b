"""Requests that come, go and come again on one worker's service, with a real engine of each role."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdwatch.stack.embedded import checkpoint
from pdwatch.stack.embedded.bootstrap import BootstrapClient
from pdwatch.stack.embedded.collector import WorkerFacts
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.engine import Engine
from pdwatch.stack.embedded.metrics import WorkerMetrics
from pdwatch.stack.embedded.receiver import TransferReceiver
from pdwatch.stack.embedded.request import Output, Request, SamplingParameters
from pdwatch.stack.embedded.sender import TransferSender
from pdwatch.stack.embedded.server.decode import DecodeRole
from pdwatch.stack.embedded.server.outputs import ClientGone, OutputStream, RequestFailed
from pdwatch.stack.embedded.server.prefill import PrefillRole
from pdwatch.stack.embedded.server.roles import Rendezvous, UnifiedRole
from pdwatch.stack.embedded.service import Service
from pdwatch.stack.embedded.transfer import Layout, RoomInUse

WEIGHTS = Path(checkpoint.__file__).parent / "weights" / "tiny_toolcaller.safetensors"
FACTS = WorkerFacts("m", "unified", 64, 64, 2, 64, 0.0, 0.0, 0.0, 0.0, None)
# nobody listens on port 1.
NOWHERE = Rendezvous("127.0.0.1", 1, 5)


def engine(role: str, **settings: Any) -> Engine:
    return Engine(EngineConfig.model_validate({"role": role, "num_pages": 40, **settings}), WEIGHTS)


def request(rid: str, room: int | None = 5) -> Request:
    return Request(rid, [256, 258, 260, *b"abc"], SamplingParameters(max_new_tokens=3, ignore_eos=True), room=room)


class Worker:
    """A service with its engine; nothing steps until `running`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.service = Service(engine)
        self.metrics = WorkerMetrics(FACTS, self.service.snapshot)
        self.layout = Layout("same", engine.page_bytes)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        driving = asyncio.create_task(self.service.run())
        try:
            # a worker whose loop has ended would never answer.
            async with asyncio.timeout(20):
                yield
        finally:
            driving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await driving

    def open(self, rid: str, rendezvous: Rendezvous | None = None) -> OutputStream:
        room = None if rendezvous is None else rendezvous.room
        return self.service.open(request(rid, room), rendezvous)

    async def until_free(self, rid: str, rendezvous: Rendezvous | None = None) -> OutputStream:
        """Open `rid` as soon as it may be used again."""
        async with asyncio.timeout(10):
            while True:
                try:
                    return self.open(rid, rendezvous)
                except RequestFailed:
                    await asyncio.sleep(0)


class PrefillWorker(Worker):
    """Prefill role, with a decode side that registers rooms."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(engine("prefill"))
        self.address = listener.getsockname()
        self.sender = TransferSender(self.layout)
        self.receiver = TransferReceiver(self.layout)
        self.role = PrefillRole(self.engine, self.metrics, self.sender, service=self.service, room_timeout_seconds=10)
        self.service.attach(self.role, self.metrics)

    async def queued(self, rid: str, room: int) -> tuple[OutputStream, asyncio.Task[Any]]:
        """A request that waits in the engine, and the decode side's task that waits for its pages."""
        receiving = asyncio.create_task(self.receiver.receive(self.address, room, _Sink(), 10, 10))
        stream = self.open(rid, Rendezvous("127.0.0.1", 1, room))
        async with asyncio.timeout(10):
            while stream.submitted is None:
                await asyncio.sleep(0)
        return stream, receiving


class _Sink:
    def begin(self, header: object) -> None:
        """Any header will do."""

    def write_page(self, page_index: int, page: bytes) -> None:
        """Any page will do."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture
async def prefill(listener: socket.socket) -> AsyncIterator[PrefillWorker]:
    worker = PrefillWorker(listener)
    await worker.sender.start(listener)
    yield worker
    await worker.receiver.close()
    await worker.sender.close()


async def test_an_id_is_free_again_once_a_unified_worker_has_let_go_of_it() -> None:
    worker = Worker(engine("unified"))
    worker.service.attach(UnifiedRole(worker.engine), worker.metrics)
    worker.service.close(worker.open("a"))
    # the abort's output has not left the engine: it would end the next request of this name.
    with pytest.raises(RequestFailed, match="request id 'a' is already in use"):
        worker.open("a")
    async with worker.running():
        stream = await worker.until_free("a")
        outputs: list[Output] = []
        while not stream.ended or not outputs:
            outputs += await stream.next()
    assert sum(len(output.new_token_ids) for output in outputs) == 3


async def test_an_id_is_free_again_once_a_prefill_worker_has_let_go_of_it(prefill: PrefillWorker) -> None:
    stream, receiving = await prefill.queued("a", 5)
    prefill.service.close(stream)
    with pytest.raises(RequestFailed, match="request id 'a' is already in use"):
        prefill.open("a", NOWHERE)
    with pytest.raises(Exception, match="aborted before its prompt was computed"):
        await receiving
    async with prefill.running():
        again = asyncio.create_task(prefill.receiver.receive(prefill.address, 6, _Sink(), 10, 10))
        stream = await prefill.until_free("a", Rendezvous("127.0.0.1", 1, 6))
        (output,) = await stream.next()
        assert (await again).first_token == output.new_token_ids[0]


async def test_a_decode_worker_keeps_an_id_until_its_arrival_is_over() -> None:
    worker = Worker(engine("decode", max_running_requests=1))
    receiver = TransferReceiver(worker.layout)
    role = DecodeRole(
        worker.engine,
        worker.metrics,
        receiver,
        BootstrapClient(worker.layout),
        page_size=64,
        service=worker.service,
        room_timeout_seconds=10,
    )
    worker.service.attach(role, worker.metrics)
    first = worker.open("first", NOWHERE)
    # one request may run, so the second has no pages, and the engine forgets it at once.
    worker.service.close(worker.open("second", Rendezvous("127.0.0.1", 1, 6)))
    assert role.holds("second")
    with pytest.raises(RequestFailed, match="request id 'second' is already in use"):
        worker.open("second", NOWHERE)
    async with worker.running():
        with pytest.raises(RequestFailed, match="no route"):
            await first.next()
        with pytest.raises(RequestFailed, match="no route"):
            await (await worker.until_free("second", NOWHERE)).next()
    await receiver.close()


async def test_a_second_request_with_a_room_does_not_end_the_first(prefill: PrefillWorker) -> None:
    stream, receiving = await prefill.queued("a", 5)
    with pytest.raises(RoomInUse, match="room 5 is already in use"):
        prefill.open("b", NOWHERE)
    assert not prefill.role.holds("b")
    async with prefill.running():
        (output,) = await stream.next()
        assert (await receiving).first_token == output.new_token_ids[0]


async def test_a_prefill_defect_costs_one_request(prefill: PrefillWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    first, lost = await prefill.queued("a", 5)
    second, received = await prefill.queued("b", 6)
    monkeypatch.setattr("pdwatch.stack.embedded.pool.KvSource.read", _failing_once(prefill))
    async with prefill.running():
        with pytest.raises(RequestFailed, match="KV transfer failed: integer division or modulo by zero"):
            await first.next()
        # the decode worker hears of it at once, not after its time-out.
        with pytest.raises(Exception, match="room 5: the prefill worker failed to send it"):
            await lost
        (output,) = await second.next()
        assert (await received).first_token == output.new_token_ids[0]


def _failing_once(worker: PrefillWorker) -> Any:
    rooms: list[int] = []

    def read(source: object, page_index: int) -> bytes:
        rooms.append(page_index)
        return bytes(worker.layout.page_bytes) if len(rooms) > 1 else bytes(1 // 0)

    return read


async def test_a_decode_defect_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(engine("decode"))
    receiver, bootstrap = TransferReceiver(worker.layout), BootstrapClient(worker.layout)
    role = DecodeRole(
        worker.engine,
        worker.metrics,
        receiver,
        bootstrap,
        page_size=64,
        service=worker.service,
        room_timeout_seconds=10,
    )
    worker.service.attach(role, worker.metrics)
    monkeypatch.setattr(bootstrap, "route", lambda *_: 1 // 0)
    async with worker.running():
        stream = worker.open("a", NOWHERE)
        with pytest.raises(RequestFailed, match="ZeroDivisionError"):
            await stream.next()
        worker.service.close(stream)
        monkeypatch.undo()
        # the loop goes on, and the pages are free again.
        with pytest.raises(RequestFailed, match="no route"):
            await (await worker.until_free("a", NOWHERE)).next()
    assert worker.engine.load.used_tokens == 0


async def test_a_closed_stream_has_no_more_outputs() -> None:
    worker = Worker(engine("unified"))
    worker.service.attach(UnifiedRole(worker.engine), worker.metrics)
    stream = worker.open("a")
    worker.service.close(stream)
    with pytest.raises(ClientGone):
        await stream.next()
