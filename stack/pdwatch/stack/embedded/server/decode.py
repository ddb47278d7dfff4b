"""Decode role: reserve pages, find the prefill worker, receive the pages, then generate."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ..bootstrap import BootstrapClient
from ..errors import TransferError
from ..receiver import TransferReceiver
from ..transfer import RoomAbandoned, TransferHeader
from .outputs import OutputStream, RequestFailed
from .roles import Queues, Rendezvous, missing_rendezvous

if TYPE_CHECKING:
    from ..engine import Engine
    from ..metrics import WorkerMetrics
    from ..request import PrefillDone
    from ..service import Service

# nothing is left of a transfer that made no progress for so long.
STALL_TIMEOUT_SECONDS: Final = 30.0
# what arriving pages may take from between two decode steps; running requests wait meanwhile, so it is short.
TRANSFER_SLICE_SECONDS: Final = 0.002
_IDLE_TURNS: Final = 4

_log = logging.getLogger(__name__)


class _Phase(Enum):
    PREALLOC = auto()
    TRANSFER = auto()


class _Arrival:
    """One request on its way from the prefill worker; the sink of its pages."""

    def __init__(self, stream: OutputStream, rendezvous: Rendezvous, engine: Engine, page_size: int) -> None:
        self.stream = stream
        self.rendezvous = rendezvous
        self.phase = _Phase.PREALLOC
        self.aborted = False
        # set when the request stops: pages that only the end of the transfer gives back.
        self.holds_pages = False
        self.outcome = "error"
        self.allocated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._engine = engine
        self._page_size = page_size

    def begin(self, header: TransferHeader) -> None:
        """Check the header against the prompt this worker rendered itself."""
        tokens = self.stream.prompt_tokens
        pages = -(-tokens // self._page_size)
        if (header.tokens, header.pages) != (tokens, pages):
            raise TransferError(
                f"room {self.rendezvous.room}: prefill has {header.tokens} tokens in {header.pages} pages, "
                f"this worker expects {tokens} in {pages}: both must render the same prompt"
            )

    def write_page(self, page_index: int, page: bytes) -> None:
        """Into the engine's reserved page, also after an abort: the reservation is held until the transfer ends."""
        self._engine.write_page(self.stream.rid, page_index, page)


class DecodeRole:
    """Requests between their arrival and the installation of their pages."""

    def __init__(
        self,
        engine: Engine,
        metrics: WorkerMetrics,
        receiver: TransferReceiver,
        bootstrap: BootstrapClient,
        *,
        page_size: int,
        service: Service,
        room_timeout_seconds: float,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._service = service
        self._receiver = receiver
        self._bootstrap = bootstrap
        self._page_size = page_size
        self._room_timeout_seconds = room_timeout_seconds
        self._arrivals: dict[str, _Arrival] = {}

    @property
    def queues(self) -> Queues:
        """Requests and prompt tokens that wait for pages, and that have pages and wait for KV."""
        arrivals = self._arrivals.values()
        waiting = [arrival.stream.prompt_tokens for arrival in arrivals if arrival.phase is _Phase.PREALLOC]
        moving = [arrival.stream.prompt_tokens for arrival in arrivals if arrival.phase is _Phase.TRANSFER]
        return Queues(
            prealloc=len(waiting),
            transfer=len(moving),
            deferred_release=sum(arrival.aborted and arrival.holds_pages for arrival in arrivals),
            pending_prealloc_tokens=sum(waiting),
            prealloc_tokens=sum(moving),
        )

    def holds(self, rid: str) -> bool:
        """True until the request's pages are installed, or its transfer has ended."""
        return rid in self._arrivals

    def start(self, stream: OutputStream, rendezvous: Rendezvous | None) -> None:
        """Ask the engine for pages and begin to look for the prefill worker."""
        if rendezvous is None:
            raise missing_rendezvous()
        self._engine.reserve(stream.request)
        self._metrics.stage("decode_prepare", time.perf_counter() - stream.created)
        arrival = self._arrivals[stream.rid] = _Arrival(stream, rendezvous, self._engine, self._page_size)
        arrival.task = self._service.spawn(self._receive(arrival))
        arrival.task.add_done_callback(lambda _: self._leave(arrival))
        self.after_step()

    def abort(self, stream: OutputStream) -> None:
        """Stop decoding or waiting; while KV is on its way the engine holds the pages until the transfer ends."""
        arrival = self._arrivals.get(stream.rid)
        if arrival is None:
            self._engine.abort(stream.rid)
        elif not arrival.aborted:
            arrival.aborted = True
            self._stop(arrival)
            if arrival.task is not None and arrival.phase is _Phase.PREALLOC:
                arrival.task.cancel()
            elif arrival.task is not None:
                asyncio.get_running_loop().call_later(STALL_TIMEOUT_SECONDS, arrival.task.cancel)

    def prefilled(self, done: PrefillDone, step_started: float) -> None:
        """A decode engine hands nothing over."""
        raise AssertionError(f"decode engine handed over {done.rid}")

    def after_step(self) -> None:
        """Let requests go on that have got their pages."""
        for rid, arrival in self._arrivals.items():
            if not arrival.allocated.done() and self._engine.receivable(rid):
                arrival.allocated.set_result(None)

    async def share_time(self) -> None:
        """Take pages as long as they come, for a slice of time."""
        deadline = time.perf_counter() + TRANSFER_SLICE_SECONDS
        idle_turns = 0
        while self._receiver.arriving and idle_turns < _IDLE_TURNS and time.perf_counter() < deadline:
            before = self._receiver.frames_received
            await asyncio.sleep(0)
            idle_turns = 0 if self._receiver.frames_received != before else idle_turns + 1

    def finished(self, stream: OutputStream) -> None:
        """Nothing is left outside the engine."""

    async def _receive(self, arrival: _Arrival) -> None:
        stream, rendezvous = arrival.stream, arrival.rendezvous
        try:
            address = await self._meet(arrival)
            arrival.phase = _Phase.TRANSFER
            began = time.perf_counter()
            header = await self._receiver.receive(
                address, rendezvous.room, arrival, self._room_timeout_seconds, STALL_TIMEOUT_SECONDS
            )
            arrival.outcome = "drained"
            if arrival.aborted:
                return
            self._metrics.stage("decode_transferred", time.perf_counter() - began)
            self._engine.install(
                stream.rid, header.first_token, header.first_logprob, header.tokens, header.cached_tokens
            )
            stream.submitted = time.perf_counter()
        except TransferError as error:
            arrival.outcome = "drained" if isinstance(error, RoomAbandoned) else "error"
            self._fail(arrival, error)
        except asyncio.CancelledError:
            arrival.outcome = "timeout" if arrival.phase is _Phase.TRANSFER else "drained"
            await self._tell_cancelled(arrival)
        except Exception as error:
            # a defect of this worker costs the one request, not all that are decoding.
            _log.exception("rid=%s room=%d KV transfer failed", stream.rid, rendezvous.room)
            self._fail(arrival, TransferError(f"{type(error).__name__}: {error}"))

    def _leave(self, arrival: _Arrival) -> None:
        """The arrival's task is over, even if it was cancelled before it began."""
        del self._arrivals[arrival.stream.rid]
        if arrival.holds_pages:
            self._engine.transfer_ended(arrival.stream.rid)
            if arrival.aborted:
                self._metrics.deferred_releases[arrival.outcome].inc()
        self._service.work_arrived()

    def _stop(self, arrival: _Arrival) -> None:
        """Abort in the engine, noting whether pages stay reserved for bytes on their way."""
        arrival.holds_pages = self._engine.receivable(arrival.stream.rid)
        self._engine.abort(arrival.stream.rid)

    async def _meet(self, arrival: _Arrival) -> tuple[str, int]:
        """Address to receive from, once it is known and the pages are allocated."""
        rendezvous, began = arrival.rendezvous, time.perf_counter()
        route = await self._bootstrap.route(rendezvous.host, rendezvous.port)
        found = time.perf_counter()
        await arrival.allocated
        allocated = time.perf_counter()
        self._metrics.kv_transfer_bootstrap_ms.observe((found - began) * 1e3)
        self._metrics.kv_transfer_alloc_ms.observe((allocated - found) * 1e3)
        self._metrics.stage("decode_bootstrap", allocated - began)
        return route.transfer_host, route.transfer_port

    def _fail(self, arrival: _Arrival, error: TransferError) -> None:
        stream, rendezvous = arrival.stream, arrival.rendezvous
        self._bootstrap.forget(rendezvous.host, rendezvous.port)
        if arrival.aborted:
            return
        met = arrival.phase is _Phase.TRANSFER
        failures = self._metrics.num_transfer_failed_reqs if met else self._metrics.num_bootstrap_failed_reqs
        failures.inc()
        _log.error("rid=%s room=%d KV transfer failed: %s", stream.rid, rendezvous.room, error)
        self._stop(arrival)
        stream.fail(RequestFailed(500, "InternalServerError", f"KV transfer failed: {error}"))

    async def _tell_cancelled(self, arrival: _Arrival) -> None:
        try:
            route = await self._bootstrap.route(arrival.rendezvous.host, arrival.rendezvous.port)
        except TransferError as error:
            _log.info("rid=%s nobody to tell about the cancelled room: %s", arrival.stream.rid, error)
            return
        await self._receiver.cancel((route.transfer_host, route.transfer_port), arrival.rendezvous.room)
