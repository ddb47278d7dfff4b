"""Prefill role: hold a request until decode has pages for it, compute its prompt, send the pages, answer one token."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ..errors import EngineError, TransferError
from ..request import FinishReason, Output
from ..sender import TransferSender
from ..transfer import RoomAbandoned, TransferHeader
from .outputs import OutputStream, RequestFailed
from .roles import Queues, Rendezvous, missing_rendezvous

if TYPE_CHECKING:
    from ..engine import Engine
    from ..metrics import WorkerMetrics
    from ..request import PrefillDone
    from ..service import Service

# SGLang's host for "no decode worker": the prompt is computed (to be scored) and its pages go nowhere.
FAKE_BOOTSTRAP_HOST: Final = "2.2.2.2"
# longest wait for leaving pages before the next prompt is computed.
TRANSFER_SLICE_SECONDS: Final = 0.02

_log = logging.getLogger(__name__)


class _Phase(Enum):
    BOOTSTRAP = auto()
    QUEUED = auto()
    TRANSFER = auto()


class _Handover:
    def __init__(self, stream: OutputStream, room: int) -> None:
        self.stream = stream
        self.room = room
        self.phase = _Phase.BOOTSTRAP
        self.began = time.perf_counter()
        self.task: asyncio.Task[None] | None = None


class PrefillRole:
    """Requests by id and by room; each has one task that waits, then sends."""

    def __init__(
        self,
        engine: Engine,
        metrics: WorkerMetrics,
        sender: TransferSender,
        *,
        service: Service,
        room_timeout_seconds: float,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._service = service
        self._sender = sender
        sender.cancelled = self.cancelled_by_decode
        self._room_timeout_seconds = room_timeout_seconds
        self._handovers: dict[str, _Handover] = {}
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def queues(self) -> Queues:
        """Requests waiting for a decode worker, and those whose pages are being sent."""
        waiting = sum(handover.phase is _Phase.BOOTSTRAP for handover in self._handovers.values())
        return Queues(bootstrap=waiting, inflight=len(self._sending))

    def holds(self, rid: str) -> bool:
        """True until the request's pages are sent, or its room is given up."""
        return rid in self._handovers

    def start(self, stream: OutputStream, rendezvous: Rendezvous | None) -> None:
        """Queue for a decode worker, or submit at once for the fake host."""
        if rendezvous is None:
            raise missing_rendezvous()
        if rendezvous.host == FAKE_BOOTSTRAP_HOST:
            stream.request.room = None
            self._engine.submit(stream.request)
            stream.submitted = time.perf_counter()
            return
        self._sender.claim(rendezvous.room)
        handover = self._handovers[stream.rid] = _Handover(stream, rendezvous.room)
        handover.task = self._service.spawn(self._bootstrap(handover))

    def abort(self, stream: OutputStream) -> None:
        """Only what still waits can be stopped; after its forward the transfer goes on."""
        handover = self._handovers.get(stream.rid)
        if handover is None:
            self._engine.abort(stream.rid)
        elif handover.phase is not _Phase.TRANSFER and not self._misses_abort(handover):
            self._drop(handover, "aborted before its prompt was computed")

    def cancelled_by_decode(self, room: int) -> None:
        """The decode worker will not take `room`: stop its request if it still waits."""
        for handover in list(self._handovers.values()):
            queued = handover.room == room and handover.phase is _Phase.QUEUED
            if queued and not self._misses_abort(handover):
                self._drop(handover, "cancelled by the decode worker")
                handover.stream.fail(RequestFailed(500, "InternalServerError", f"room {room}: cancelled by decode"))

    def prefilled(self, done: PrefillDone, step_started: float) -> None:
        """Observe the forward and send the pages."""
        handover = self._handovers[done.rid]
        now = time.perf_counter()
        submitted = handover.stream.submitted or step_started
        self._metrics.queue_time_seconds.observe(max(0.0, step_started - submitted))
        self._metrics.stage("prefill_forward", now - max(step_started, submitted))
        handover.phase = _Phase.TRANSFER
        self._track(self._service.spawn(self._send(handover, done)))

    def after_step(self) -> None:
        """Nothing waits for pages here: the engine admits by itself."""

    async def share_time(self) -> None:
        """Finish the transfers under way: a decode worker waits for them, and a step takes long."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=TRANSFER_SLICE_SECONDS)

    def finished(self, stream: OutputStream) -> None:
        """The engine ended a request by itself: a decode worker that waits for its pages must know."""
        handover = self._handovers.pop(stream.rid, None)
        if handover is not None:
            message = f"room {handover.room}: the prompt could not be computed"
            self._track(self._service.spawn(self._sender.refuse(handover.room, message)))

    async def _bootstrap(self, handover: _Handover) -> None:
        stream, room = handover.stream, handover.room
        try:
            await self._sender.wait_registered(room, self._room_timeout_seconds)
            waited = time.perf_counter() - handover.began
            self._metrics.stage("prefill_bootstrap", waited)
            self._metrics.kv_transfer_bootstrap_ms.observe(waited * 1e3)
            self._metrics.kv_transfer_alloc_ms.observe(0.0)
            self._engine.submit(stream.request)
        except Exception as error:
            # whatever it is, it costs the one request: the others go on.
            await self._give_up(handover, error)
            return
        handover.phase = _Phase.QUEUED
        stream.submitted = time.perf_counter()
        self._service.work_arrived()

    async def _give_up(self, handover: _Handover, error: Exception) -> None:
        stream, room = handover.stream, handover.room
        rejected = isinstance(error, EngineError) and not isinstance(error, TransferError)
        if not isinstance(error, EngineError):
            _log.error("rid=%s room=%d cannot be prefilled: %s", stream.rid, room, error, exc_info=error)
        if not rejected and not isinstance(error, RoomAbandoned):
            self._metrics.num_bootstrap_failed_reqs.inc()
        self._handovers.pop(stream.rid, None)
        status, kind = (400, "BadRequestError") if rejected else (500, "InternalServerError")
        stream.fail(RequestFailed(status, kind, str(error)))
        await self._sender.refuse(room, str(error))

    async def _send(self, handover: _Handover, done: PrefillDone) -> None:
        stream = handover.stream
        header = TransferHeader(
            tokens=done.tokens,
            pages=done.kv.pages,
            first_token=done.first_token,
            first_logprob=done.first_logprob,
            cached_tokens=done.cached_tokens,
        )
        try:
            report = await self._sender.send(handover.room, header, done.kv)
        except Exception as error:
            # whatever it is, it costs the one request: the others' transfers go on.
            self._metrics.num_transfer_failed_reqs.inc()
            own = not isinstance(error, TransferError)
            _log.error("rid=%s room=%d transfer failed: %s", stream.rid, handover.room, error, exc_info=own)
            stream.fail(RequestFailed(500, "InternalServerError", f"KV transfer failed: {error}"))
            await self._sender.refuse(handover.room, f"room {handover.room}: the prefill worker failed to send it")
        else:
            self._metrics.transferred(report.total_bytes, report.seconds)
            self._metrics.stage("prefill_transfer_kv_cache", report.seconds)
            stream.deliver(_answer(done), time.perf_counter())
        finally:
            self._engine.transfer_done(done.rid)
            self._handovers.pop(stream.rid, None)
            self._service.work_arrived()

    def _misses_abort(self, handover: _Handover) -> bool:
        return handover.phase is _Phase.QUEUED and self._engine.fault.misses_abort(len(self._handovers))

    def _drop(self, handover: _Handover, reason: str) -> None:
        if handover.phase is _Phase.QUEUED:
            self._engine.abort(handover.stream.rid)
        elif handover.task is not None:
            handover.task.cancel()
        self._handovers.pop(handover.stream.rid, None)
        message = f"room {handover.room}: {reason}"
        self._track(self._service.spawn(self._sender.refuse(handover.room, message)))

    def _track(self, task: asyncio.Task[None]) -> None:
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _answer(done: PrefillDone) -> Output:
    """The one token a prefill worker answers with; the router drops it."""
    return Output(
        rid=done.rid,
        new_token_ids=[done.first_token],
        logprobs=None if done.first_logprob is None else [done.first_logprob],
        finish=FinishReason("length"),
        prompt_logprobs=done.prompt_logprobs,
        cached_tokens=done.cached_tokens,
        running_batch=1,
        num_retractions=0,
    )
