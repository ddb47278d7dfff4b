"""A running deployment: its processes from the first port to the last reaped child.

Data flow of a start:

1. ``start`` checks the spec, reserves all ports and writes one configuration file per worker.
2. A thread of the deployment starts all workers at once and probes them; only this thread starts, ends and reaps.
3. Once all workers are healthy it starts the router, which finds them at once.
4. Once the router counts them all, the deployment is ready; from then on the thread only looks for deaths.
5. A death, or ``stop``, ends all processes. A death of this process does too: each child has a parent-death signal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pdwatch.stack.errors import NotReady, StackError
from pdwatch.stack.ports import HOST, PortTable
from pdwatch.stack.processes import ManagedProcess, ProcessPlan, ProcessState, ProcessStatus, stop_all
from pdwatch.stack.router import ROUTER, PrefillTarget, router_plan
from pdwatch.stack.spec import DeploymentSpec
from pdwatch.stack.workers import check_settings, worker_plan

Progress = Callable[[ProcessStatus], None]

STOP_GRACE_SECONDS = 5.0
_PROBE_EVERY_SECONDS = 0.05
_WATCH_EVERY_SECONDS = 0.2
# what the kernel needs to end killed processes, on top of the grace
_STOP_MARGIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Base URLs of a deployment; None where it has no such process."""

    router: str | None
    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    reference: str | None
    router_metrics: str | None


class Deployment:
    """Processes of one spec, as a context manager that always stops them."""

    def __init__(self, spec: DeploymentSpec, directory: Path) -> None:
        """Reserve ports and write configurations; use ``start``, which also starts the processes."""
        self.spec = spec
        self.directory = directory
        self.logs = directory / "logs"
        configs = directory / "config"
        for folder in (self.logs, configs):
            folder.mkdir(parents=True, exist_ok=True)
        self._ports = PortTable(spec.ports)
        try:
            plans, self.endpoints = _plan(spec, self._ports, configs)
        except BaseException:
            self._ports.release()
            raise
        self._processes = [ManagedProcess(plan, self.logs) for plan in plans]
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._ready = False
        self._failure: BaseException | None = None
        self._owner = threading.Thread(target=self._own, name=f"deployment-{spec.name}", daemon=True)

    @classmethod
    def start(cls, spec: DeploymentSpec, directory: Path) -> Self:
        """Start all processes of ``spec`` and return at once; logs go to ``directory/logs``.

        Raises SpecInvalid or PortInUse before anything has been started.
        """
        check_settings(spec)
        deployment = cls(spec, directory.absolute())
        deployment._owner.start()
        return deployment

    @property
    def processes(self) -> tuple[ProcessStatus, ...]:
        return tuple(process.status for process in self._processes)

    def wait_ready(self, timeout_seconds: float = 60.0, progress: Progress | None = None) -> None:
        """Return once every process is ready; ``progress`` gets each process as its state changes, in this thread.

        Raises NotReady after ``timeout_seconds`` and ProcessDied when a process ends first. Neither leaves the ``with``
        block's processes behind, since its end stops them.
        """
        deadline = time.monotonic() + timeout_seconds
        seen: dict[str, ProcessState] = {}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._settled or self._states() != seen, deadline - time.monotonic())
            for status in self.processes:
                if seen.get(status.name) is not status.state:
                    seen[status.name] = status.state
                    if progress is not None:
                        progress(status)
            self.check()
            if self._ready:
                return
            if time.monotonic() >= deadline:
                raise self.not_ready(timeout_seconds)

    @property
    def ready(self) -> bool:
        """Whether every process became ready; what became of them since is told by ``check``."""
        return self._ready

    def not_ready(self, timeout_seconds: float) -> NotReady:
        """The error that names who is not ready yet."""
        late = [status.name for status in self.processes if status.state is not ProcessState.READY]
        return NotReady(late, timeout_seconds, self.logs)

    def check(self) -> None:
        """Raise ProcessDied when a process has ended by itself, and StackError when the deployment was stopped."""
        if self._failure is not None:
            raise self._failure
        if self._stop.is_set():
            raise StackError(f"deployment {self.spec.name} has been stopped: start it again")

    def stop(self) -> None:
        """End all processes and return when none is left; harmless when repeated."""
        self._stop.set()
        if self._owner.ident is not None:
            self._owner.join(STOP_GRACE_SECONDS + _STOP_MARGIN_SECONDS)
        if self._owner.is_alive():
            raise StackError(f"deployment {self.spec.name} does not end: look for its processes with ps")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _settled(self) -> bool:
        return self._ready or self._failure is not None or self._stop.is_set()

    def _states(self) -> dict[str, ProcessState]:
        return {status.name: status.state for status in self.processes}

    def _own(self) -> None:
        try:
            self._run()
        except BaseException as error:
            # raised again, in the caller's thread, by check
            self._failure = error
        finally:
            stop_all(self._processes, STOP_GRACE_SECONDS)
            self._ports.release()
            self._announce()

    def _run(self) -> None:
        workers = [process for process in self._processes if process.plan.role != ROUTER]
        routers = [process for process in self._processes if process.plan.role == ROUTER]
        for group in (workers, routers):
            if group and not self._bring_up(group):
                return
        self._ports.release()
        self._ready = True
        self._announce()
        while not self._stop.wait(_WATCH_EVERY_SECONDS):
            for process in self._processes:
                process.check()

    def _bring_up(self, group: Sequence[ManagedProcess]) -> bool:
        """Start the processes of ``group`` together and wait until all are ready; False when told to stop first."""
        for process in group:
            process.start()
        self._announce()
        # side by side: a worker that listens but does not serve yet keeps its probe waiting, not the others'
        with ThreadPoolExecutor(len(group), thread_name_prefix="probe") as pool:
            while not all(process.status.state is ProcessState.READY for process in group):
                if self._stop.wait(_PROBE_EVERY_SECONDS):
                    return False
                for process in self._processes:
                    process.check()
                if any(list(pool.map(ManagedProcess.probe, group))):
                    self._announce()
        return True

    def _announce(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _plan(spec: DeploymentSpec, ports: PortTable, configs: Path) -> tuple[list[ProcessPlan], Endpoints]:
    """Plan all processes of ``spec``, in the order in which they are shown."""
    prefill = [worker_plan(spec, f"prefill-{index}", "prefill", ports, configs) for index in range(spec.prefill)]
    decode = [worker_plan(spec, f"decode-{index}", "decode", ports, configs) for index in range(spec.decode)]
    reference = [worker_plan(spec, "reference", "unified", ports, configs)] if spec.reference else []
    router: list[ProcessPlan] = []
    router_metrics = None
    if spec.router:
        metrics_port = ports.reserve("router.metrics")
        router_metrics = f"http://{HOST}:{metrics_port}/metrics"
        targets = [PrefillTarget(plan.url, ports.port(f"{plan.name}.bootstrap")) for plan in prefill]
        router = [router_plan(ports.reserve("router"), metrics_port, targets, [plan.url for plan in decode])]
    endpoints = Endpoints(
        router=router[0].url if router else None,
        prefill=tuple(plan.url for plan in prefill),
        decode=tuple(plan.url for plan in decode),
        reference=reference[0].url if reference else None,
        router_metrics=router_metrics,
    )
    return [*prefill, *decode, *reference, *router], endpoints
