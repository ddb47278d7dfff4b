"""The worker's loop: steps the engine inside the event loop and delivers what comes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from .collector import Snapshot
from .request import PrefillDone
from .server.outputs import ClientGone, OutputStream, RequestFailed
from .server.roles import Rendezvous, Role

if TYPE_CHECKING:
    from .engine import Engine
    from .metrics import WorkerMetrics
    from .request import Output, Request

_THROUGHPUT_WINDOW_SECONDS: Final = 1.0
_STALLED_SLEEP_SECONDS: Final = 0.001


class Service:
    """Requests in progress on one worker, and the loop that drives them. All calls come from the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams: dict[str, OutputStream] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: BaseException | None = None
        self._stage_seconds = dict.fromkeys(("recv_requests", "run_batch", "process_batch_result", "idle"), 0.0)
        self._idle_since: float | None = None
        self._window_began = time.perf_counter()
        self._window_tokens = 0
        self._throughput = 0.0
        # seconds to sleep after each step (/slow_down); None when off.
        self.forward_sleep_seconds: float | None = None
        self._role: Role
        self._metrics: WorkerMetrics

    def attach(self, role: Role, metrics: WorkerMetrics) -> None:
        """Complete the service with its role and metrics, which themselves call back into it."""
        self._role = role
        self._metrics = metrics

    @property
    def busy(self) -> bool:
        """True while any request has not ended."""
        return bool(self._streams)

    def open(self, request: Request, rendezvous: Rendezvous | None) -> OutputStream:
        """Begin a request. Raises EngineError or RequestFailed when it cannot be served."""
        if request.rid in self._streams or self._engine.holds(request.rid) or self._role.holds(request.rid):
            # also an aborted request keeps its id until the last of it has left: its outputs carry nothing but the id.
            raise RequestFailed(400, "BadRequestError", f"request id {request.rid[:80]!r} is already in use")
        stream = OutputStream(request, self._metrics)
        self._role.start(stream, rendezvous)
        self._streams[stream.rid] = stream
        self.work_arrived()
        return stream

    def close(self, stream: OutputStream) -> None:
        """The answer is over: forget the request, and stop it if it still runs."""
        if self._streams.pop(stream.rid, None) is not None and not stream.ended:
            self._role.abort(stream)
            stream.fail(ClientGone(f"{stream.rid}: the client closed the connection"))
            self.work_arrived()

    def abort(self, rid: str | None) -> int:
        """Stop the request called `rid`, or all of them for None. Returns how many were stopped."""
        chosen = [stream for stream in self._streams.values() if rid in (None, stream.rid) and not stream.ended]
        for stream in chosen:
            self._role.abort(stream)
            stream.abort("Aborted by /abort_request.")
        self.work_arrived()
        return len(chosen)

    def work_arrived(self) -> None:
        """Wake the loop: the engine may have something to do."""
        self._wake.set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a request's own work beside the loop; what it does not handle ends the worker, as in the loop."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    async def run(self) -> None:
        """Step the engine for ever. What the engine raises ends the worker: there is no state to go on with."""
        while True:
            self._wake.clear()
            if self._fatal is not None:
                raise self._fatal
            if not self._engine.has_work:
                self._idle_since = time.perf_counter()
                await self._wake.wait()
                self._leave_idle()
                continue
            started = time.perf_counter()
            events = self._engine.step()
            stepped = time.perf_counter()
            self._deliver(events, started, stepped)
            self._role.after_step()
            delivered = time.perf_counter()
            await self._serve_others()
            if not events:
                # a part of a long prompt, or everything waits for pages that transfers hold: do not spin.
                await asyncio.sleep(_STALLED_SLEEP_SECONDS)
            self._account(started, stepped, delivered, time.perf_counter())

    def snapshot(self) -> Snapshot:
        """Facts for a scrape, fresh."""
        now = time.perf_counter()
        queues = self._role.queues
        idle = 0.0 if self._idle_since is None else now - self._idle_since
        running = [stream for stream in self._streams.values() if stream.first_token_at is not None]
        return Snapshot(
            load=self._engine.load,
            statistics=self._engine.statistics,
            bootstrap_queue=queues.bootstrap,
            inflight_queue=queues.inflight,
            prealloc_queue=queues.prealloc,
            transfer_queue=queues.transfer,
            deferred_release=queues.deferred_release,
            pending_prealloc_tokens=queues.pending_prealloc_tokens,
            prealloc_tokens=queues.prealloc_tokens,
            running_tokens=sum(stream.prompt_tokens + stream.generated_tokens for stream in running),
            generation_throughput=self._throughput
            if now - self._window_began < 2 * _THROUGHPUT_WINDOW_SECONDS
            else 0.0,
            stage_seconds=self._stage_seconds | {"idle": self._stage_seconds["idle"] + idle},
        )

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fatal = task.exception()
            self.work_arrived()

    def _deliver(self, events: list[Output | PrefillDone], started: float, stepped: float) -> None:
        for event in events:
            if isinstance(event, PrefillDone):
                self._role.prefilled(event, started)
                continue
            stream = self._streams.get(event.rid)
            if stream is None:
                continue
            if stream.first_token_at is None and stream.submitted is not None:
                self._observe_wait(stream, started, stepped)
            self._window_tokens += len(event.new_token_ids)
            stream.deliver(event, stepped)
            if event.finish is not None:
                self._role.finished(stream)

    def _observe_wait(self, stream: OutputStream, started: float, stepped: float) -> None:
        """A request's first output: how long it waited, and for a prompt computed here, how long that took."""
        submitted = stream.submitted or started
        waited = max(0.0, started - submitted)
        self._metrics.queue_time_seconds.observe(waited)
        if stream.request.room is not None:
            self._metrics.stage("decode_waiting", waited)
        else:
            self._metrics.stage("request_process", submitted - stream.created)
            self._metrics.stage("prefill_forward", stepped - max(started, submitted))

    async def _serve_others(self) -> None:
        """Let the answering tasks write, new requests in, and pages move, before the next step."""
        # the first turn lets the tasks write, the second comes after uvloop has flushed what they wrote.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self.forward_sleep_seconds:
            await asyncio.sleep(self.forward_sleep_seconds)
        await self._role.share_time()

    def _leave_idle(self) -> None:
        now = time.perf_counter()
        self._stage_seconds["idle"] += now - (self._idle_since or now)
        self._idle_since = None
        self._window_began, self._window_tokens = now, 0

    def _account(self, started: float, stepped: float, delivered: float, ended: float) -> None:
        self._stage_seconds["run_batch"] += stepped - started
        self._stage_seconds["process_batch_result"] += delivered - stepped
        self._stage_seconds["recv_requests"] += ended - delivered
        window = ended - self._window_began
        if window >= _THROUGHPUT_WINDOW_SECONDS:
            self._throughput = self._window_tokens / window
            self._window_began, self._window_tokens = ended, 0
