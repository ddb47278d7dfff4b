"""The workers as the leader sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import gevent
import gevent.os
import gevent.subprocess
from gevent.event import Event

from ..errors import LoadgenError, PlanError
from ..plan import Plan
from .channel import PROTOCOL, LeadRunner
from .clock import ClockOffset, Ping, boot, clock_offset
from .ledger import Ledger
from .link import Link, Packet

_PINGS: Final = 12
_PING_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.05
_REMIND_SECONDS: Final = 0.25
_LOCAL_JOIN_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 30.0


class WorkerLost(LoadgenError):
    """A worker died, or could not go on."""


class Stopped(Exception):
    """We were asked to stop."""


@dataclass(slots=True)
class Child:
    """A worker that we started on this machine. Nothing is left of it and its own once `life` has ended."""

    process: Any
    directory: Path
    life: int


@dataclass(slots=True)
class Worker:
    """One worker; `clock` is its monotonic clock's offset from ours as measured last."""

    name: str
    index: int
    hello: Mapping[str, Any]
    link: Link
    child: Child | None
    clock: ClockOffset = field(default_factory=ClockOffset)
    pings: list[Ping] = field(default_factory=list)
    events: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    is_told_to_stop: bool = False
    closed: Mapping[str, Any] | None = None
    lost: str | None = None

    @property
    def title(self) -> str:
        """How it is told of."""
        return f"worker {self.index} ({self.hello['host']}, process {self.hello['process']})"


class Crew:
    """Gathers so many workers and speaks to them. `on_event` gets each event of a driver."""

    def __init__(
        self, host: str, port: int, wanted: int, on_event: Callable[[Worker, Mapping[str, Any]], None]
    ) -> None:
        """Raises PlanError when the address cannot be listened on."""
        self.workers: list[Worker] = []
        self.ledger: Ledger | None = None
        self.is_stopping = False
        self._wanted = wanted
        self._on_event = on_event
        self._changed = Event()
        self._links: dict[str, Link] = {}
        self._by_name: dict[str, Worker] = {}
        self._refused: str | None = None
        self._error: Exception | None = None
        self._children: list[Child] = []
        self._is_closing = False
        self.runner = LeadRunner(host, port, self._took, self.stop)
        self._pacer = gevent.spawn(self._pace)

    def start_local(self, directory: Path, bearer_token_environment: str | None) -> None:
        """Start all the workers as processes of this machine."""
        for number in range(self._wanted):
            folder = directory / str(number)
            ours, its = os.pipe()
            command = [
                *(sys.executable, "-P", "-m", "pdwatch.loadgen.scale.agent", "--master-host", "127.0.0.1"),
                *("--master-port", str(self.runner.port), "--out", str(folder), "--tie", "0", "--life", str(its)),
            ]
            if bearer_token_environment is not None:
                command += ["--bearer-token-environment", bearer_token_environment]
            process = gevent.subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[its]
            )
            os.close(its)
            gevent.os.make_nonblocking(ours)
            self._children.append(Child(process, folder, ours))

    def gather(self, report: Callable[[Mapping[str, Any]], None]) -> None:
        """Wait until all have joined. Raises LoadgenError and Stopped."""
        limit_seconds = time.monotonic() + _LOCAL_JOIN_SECONDS if self._children else float("inf")
        told = -1
        while len(self.workers) < self._wanted:
            if len(self.workers) != told:
                told = len(self.workers)
                report({"event": "waiting", "joined": told, "wanted": self._wanted, "port": self.runner.port})
            self.pause()
            for child in self._children:
                if child.process.poll() is not None:
                    raise LoadgenError(f"a worker ended before it had joined: {_last_line(child.process.stderr)}")
            if time.monotonic() > limit_seconds:
                raise LoadgenError(f"{told} of {self._wanted} workers joined within {_LOCAL_JOIN_SECONDS:g} s")

    def send_plan(self, plan: Plan) -> None:
        """Give each worker the plan, and its share of it."""
        for worker in self.workers:
            worker.link.put({"kind": "plan", "plan": plan.model_dump_json(), "index": worker.index, "of": self._wanted})

    def tell(self, workers: Sequence[Worker], order: Mapping[str, Any]) -> None:
        """Give the drivers of these workers an order; `at_seconds` is on our clock, and is told on theirs."""
        for worker in workers:
            theirs = dict(order)
            if "at_seconds" in order:
                theirs["at_seconds"] = worker.clock.to_other(order["at_seconds"])
            worker.link.put({"kind": "order", "order": theirs})

    def measure_clocks(self) -> None:
        """Ask all for the time, several times. Raises WorkerLost for one that does not answer."""
        for worker in self.workers:
            worker.pings.clear()
        for number in range(_PINGS):
            for worker in self.workers:
                self.runner.transmit(worker.name, {"ping": time.monotonic()})
            limit_seconds = time.monotonic() + _PING_SECONDS
            self.wait(lambda number=number: self._have_answered(number + 1), limit_seconds)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        for worker in self.workers:
            if not worker.pings:
                raise self._lose(worker, "it does not answer when it is asked for the time")
            is_same = worker.hello["boot"] is not None and worker.hello["boot"] == boot()
            worker.clock = clock_offset(worker.pings, is_same_machine=is_same)

    def wait(self, is_over: Callable[[], bool], limit_seconds: float = float("inf")) -> bool:
        """Wait until something holds; False when the time is over. Raises WorkerLost, LoadgenError and Stopped."""
        while not is_over():
            if time.monotonic() >= limit_seconds:
                return False
            self.pause()
        return True

    def pause(self) -> None:
        """Wait for news a moment. Raises WorkerLost, LoadgenError and Stopped."""
        self._changed.wait(_POLL_SECONDS)
        self._changed.clear()
        self.check()

    def check(self) -> None:
        """Raises WorkerLost for the first worker that is lost, LoadgenError and Stopped."""
        if self._error is not None:
            raise self._error
        if self._refused is not None:
            raise PlanError(self._refused)
        if self.is_stopping:
            raise Stopped
        for worker in self.workers:
            if worker.lost is None and worker.closed is None and self._is_gone(worker):
                self._lose(worker, "it died, or cannot be reached")
            if worker.lost is not None:
                raise WorkerLost(f"{worker.title} was lost: {worker.lost}")

    def stop(self) -> None:
        """Let whoever waits be told that we are to stop."""
        if not self._is_closing:
            self.is_stopping = True
            self._changed.set()

    def close_drivers(self, *, is_early: bool) -> None:
        """Let all drivers end, and wait until all that they recorded has come or is known to be lost."""
        for worker in self.workers:
            if is_early:
                worker.is_told_to_stop = True
                worker.link.put({"kind": "stop"})
            else:
                worker.link.put({"kind": "order", "order": {"do": "finish"}})
        limit_seconds = time.monotonic() + _CLOSE_SECONDS
        while any(worker.closed is None and not self._is_gone(worker) for worker in self.workers):
            if time.monotonic() > limit_seconds:
                break
            self._changed.wait(_POLL_SECONDS)
            self._changed.clear()
        for worker in self.workers:
            if worker.closed is None:
                worker.lost = worker.lost or "it died, or cannot be reached"
                self._salvage(worker)

    def close(self) -> None:
        """Dismiss all, and wait for those that we started."""
        self._is_closing = True
        for link in self._links.values():
            link.put({"kind": "dismissed"})
        limit_seconds = time.monotonic() + 2.0
        while any(link.pending for link in self._links.values()) and time.monotonic() < limit_seconds:
            gevent.sleep(0.01)
        self._pacer.kill()
        self.runner.close()
        for child in self._children:
            child.process.stdin.close()
            try:
                child.process.wait(10.0)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.process.stderr.close()
            os.close(child.life)

    def _pace(self) -> None:
        while True:
            gevent.sleep(_REMIND_SECONDS)
            for link in tuple(self._links.values()):
                link.remind()

    def _took(self, name: str, packet: Packet) -> None:
        received_seconds = time.monotonic()
        if "pong" in packet:
            if (worker := self._by_name.get(name)) is not None:
                worker.pings.append(Ping(packet["pong"], packet["seconds"], received_seconds))
        else:
            if name not in self._links:
                self._links[name] = Link(
                    lambda out: self.runner.transmit(name, out), lambda message: self._message(name, message)
                )
            self._links[name].took(packet)
        self._changed.set()

    def _message(self, name: str, message: Mapping[str, Any]) -> None:
        worker = self._by_name.get(name)
        try:
            if message["kind"] == "hello":
                self._join(name, message)
            elif worker is not None and worker.lost is None:
                self._work(worker, message)
        except Exception as error:  # it would be locust's to log, and we would wait for ever
            title = name if worker is None else worker.title
            self._error = self._error or LoadgenError(f"{title} sent what cannot be used: {error!r}")

    def _join(self, name: str, hello: Mapping[str, Any]) -> None:
        if hello["protocol"] != PROTOCOL:
            self._refused = (
                f"the worker on {hello['host']} speaks protocol {hello['protocol']}, and this leader {PROTOCOL}; "
                "install the same pdwatch on both"
            )
        elif len(self.workers) == self._wanted or not self._is_ours(hello):
            self._links[name].put({"kind": "dismissed"})
        else:
            # those that we started are numbered as we started them, others as they join.
            processes = [child.process.pid for child in self._children]
            index = processes.index(hello["process"]) if self._children else len(self.workers)
            child = self._children[index] if self._children else None
            worker = self._by_name[name] = Worker(name, index, hello, self._links[name], child)
            self.workers.append(worker)
            self.workers.sort(key=lambda worker: worker.index)

    def _is_ours(self, hello: Mapping[str, Any]) -> bool:
        return not self._children or any(child.process.pid == hello["process"] for child in self._children)

    def _work(self, worker: Worker, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "piece":
                assert self.ledger is not None
                self.ledger.add(worker.index, message)
            case "event":
                event = message["event"]
                worker.events[event["event"]] = event
                self._on_event(worker, event)
            case "closed":
                worker.closed = message
                assert self.ledger is not None
                self.ledger.flush(worker.index)
                self.ledger.check(worker.index, message["files"])
                if message["status"] != 0 and not worker.is_told_to_stop:
                    self._lose(worker, message["error"])

    def _have_answered(self, count: int) -> bool:
        return all(len(worker.pings) >= count for worker in self.workers)

    def _is_gone(self, worker: Worker) -> bool:
        if worker.child is not None and worker.child.process.poll() is not None:
            return True
        return self.runner.is_missing(worker.name)

    def _lose(self, worker: Worker, reason: str) -> WorkerLost:
        worker.lost = worker.lost or reason
        self._changed.set()
        return WorkerLost(f"{worker.title} was lost: {worker.lost}")

    def _salvage(self, worker: Worker) -> None:
        assert self.ledger is not None
        if worker.child is None:
            self.ledger.flush(worker.index)
            return
        # its driver and clerk end by themselves, after they have recorded what they had.
        with gevent.Timeout(_CLOSE_SECONDS, False):
            while gevent.os.nb_read(worker.child.life, 1):
                pass
        self.ledger.salvage(worker.index, worker.child.directory)


def _last_line(stream: Any) -> str:
    lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("loadgen: ") if lines else "it said nothing"
