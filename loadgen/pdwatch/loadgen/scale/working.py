"""A worker: `python -m pdwatch.loadgen.scale.agent --master-host H [--master-port P] --out DIR`.

It joins the leader, runs the driver of its share, passes orders and events on, and ships what the driver's clerk writes
while it is written. It takes no load itself. The bearer token never travels: the worker's own command line names the
environment variable that holds it, and a plan that wants one is refused without.

Exit status: 0 the leader has everything, 1 the run broke off, 3 it could not begin.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import gevent
import gevent.os
import gevent.subprocess
from gevent.event import Event

from ..errors import LoadgenError, PlanError, TargetUnreachable
from ..journal import JOURNAL_NAME
from ..plan import Plan
from ..row import ROWS_NAME
from .channel import PROTOCOL, FollowRunner, check_host, quiet_locust
from .clock import boot
from .gaps import GAPS_NAME
from .link import MOST_OPEN, Link, Packet
from .shipping import Outgoing

PLAN_NAME: Final = "plan.json"
LOG_NAME: Final = "driver.log"
SHIPPED: Final = (JOURNAL_NAME, ROWS_NAME, GAPS_NAME)

EXIT_BROKE_OFF: Final = 1
EXIT_COULD_NOT_RUN: Final = 3

_SHIP_SECONDS: Final = 0.5
_REMIND_SECONDS: Final = 0.25
# the driver stamps what arrives, and its clerk must keep up: where cores are few, they go first.
NICE: Final = 10


def work(arguments: Sequence[str]) -> int:
    """Work for one run in this process, whose standard library gevent has replaced; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pdwatch.loadgen.scale.agent", description="Drive one share.")
    parser.add_argument("--master-host", required=True, metavar="HOST")
    parser.add_argument("--master-port", type=int, default=5557, metavar="PORT")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="an empty folder for what is recorded")
    parser.add_argument("--bearer-token-environment", metavar="VARIABLE", help="holds the token, if one is needed")
    parser.add_argument("--tie", type=int, metavar="FD", help="end when this descriptor does")
    parser.add_argument("--life", type=int, metavar="FD", help="kept open by the driver too, until its clerk has ended")
    options = parser.parse_args(arguments)
    quiet_locust()
    agent = Agent(options.out, options.bearer_token_environment, options.life)
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, agent.stop, f"stopped by {signal.Signals(number).name}")
    if options.tie is not None:
        gevent.spawn(_watch, options.tie, agent)
    try:
        return agent.run(options.master_host, options.master_port)
    except LoadgenError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN if isinstance(error, PlanError | TargetUnreachable) else EXIT_BROKE_OFF


class Agent:
    """One worker's part of one run."""

    def __init__(self, directory: Path, bearer_token_environment: str | None, life: int | None) -> None:
        self._directory = directory
        self._bearer_token_environment = bearer_token_environment
        self._life = life
        self._runner: FollowRunner | None = None
        self._link = Link(self._transmit, self._order)
        self._files = [Outgoing(directory / name) for name in SHIPPED]
        self._driver: Any = None
        self._early: list[Mapping[str, Any]] = []
        self._cpu_seconds = 0.0
        self._began_seconds = 0.0
        self._is_shipping = False
        self._is_dismissed = False
        self._has_plan = False
        self._is_told_to_stop = False
        self._reason: str | None = None
        self._is_over = Event()

    def run(self, host: str, port: int) -> int:
        """Join, work until the leader dismisses us, leave; the exit status. Raises LoadgenError."""
        if self._directory.exists() and any(self._directory.iterdir()):
            raise PlanError(f"{self._directory} is not empty; give another folder with --out")
        if self._life is None:
            print(f"loadgen: joining the master at {host}:{port}", file=sys.stderr)
        check_host(host, port)
        self._runner = FollowRunner(host, port, self._took, lambda: self.stop("the leader is gone"))
        self._link.put(self._hello())
        pacer = gevent.spawn(self._pace)
        try:
            self._is_over.wait()
            self._end_driver()
        finally:
            pacer.kill()
            self._runner.close()
        if self._is_dismissed:
            # it was for the figures of this run only, and the leader has it.
            (self._directory / GAPS_NAME).unlink(missing_ok=True)
        if self._reason is not None:
            kept = f"; what it had recorded is in {self._directory}" if self._driver is not None else ""
            raise LoadgenError(f"{self._reason}{kept}")
        return 0

    def stop(self, reason: str) -> None:
        """End early."""
        if not self._is_dismissed:
            self._reason = self._reason or reason
            self._is_over.set()

    def _hello(self) -> Mapping[str, Any]:
        return {
            "kind": "hello",
            "protocol": PROTOCOL,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "python": platform.python_version(),
            "boot": boot(),
            "directory": str(self._directory.resolve()),
        }

    def _pace(self) -> None:
        shipped_seconds = 0.0
        while True:
            gevent.sleep(_REMIND_SECONDS)
            self._link.remind()
            if self._driver is not None and time.monotonic() - shipped_seconds >= _SHIP_SECONDS:
                self._ship()
                shipped_seconds = time.monotonic()

    def _transmit(self, packet: Packet) -> None:
        if self._runner is not None:
            self._runner.transmit(packet)

    def _took(self, packet: Packet) -> None:
        if "ping" in packet:
            self._transmit({"pong": packet["ping"], "seconds": time.monotonic()})
        else:
            self._link.took(packet)

    def _order(self, message: Mapping[str, Any]) -> None:
        try:
            self._obey(message)
        except Exception as error:  # it would be locust's to log, and the leader would wait for ever
            self.stop(f"the leader sent what cannot be used: {error!r}")

    def _obey(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "plan":
                self._has_plan = True
                # a greenlet of its own: it waits for the driver's end.
                gevent.spawn(self._work, message)
            case "order":
                self._tell_driver(message["order"])
            case "stop":
                self._is_told_to_stop = True
                self._end_driver()
                if not self._has_plan:
                    self._link.put({"kind": "closed", "status": 0, "error": "", "files": []})
            case "dismissed":
                self._is_dismissed = True
                self._is_over.set()

    def _tell_driver(self, order: Mapping[str, Any]) -> None:
        if self._driver is None:
            # it is being started.
            self._early.append(order)
            return
        # what a driver that is gone was told is of no use to anyone: its end is told by itself.
        with contextlib.suppress(BrokenPipeError):
            self._driver.stdin.write(json.dumps(order).encode() + b"\n")
            self._driver.stdin.flush()

    def _work(self, message: Mapping[str, Any]) -> None:
        try:
            plan = self._localised(Plan.model_validate_json(message["plan"]))
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / PLAN_NAME).write_text(plan.model_dump_json(indent=2))
        except (PlanError, ValueError, OSError) as error:
            self._link.put({"kind": "closed", "status": EXIT_COULD_NOT_RUN, "error": str(error), "files": []})
            return
        ours, its = os.pipe()
        log = self._directory / LOG_NAME
        kept = [its] if self._life is None else [its, self._life]
        with log.open("wb") as talk:
            self._driver = gevent.subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pdwatch.loadgen.drive", "--in-step"),
                    *("--plan", str(self._directory / PLAN_NAME), "--out", str(self._directory)),
                    *("--share", f"{message['index']}/{message['of']}"),
                ],
                stdin=gevent.subprocess.PIPE,
                stdout=gevent.subprocess.PIPE,
                stderr=talk,
                pass_fds=kept,
            )
        os.close(its)
        os.nice(NICE)
        early, self._early = self._early, []
        for order in early:
            self._tell_driver(order)
        if self._is_told_to_stop:
            self._end_driver()
        for line in self._driver.stdout:
            self._relay(json.loads(line))
        status = self._driver.wait()
        # its clerk finishes what it was given, and has the pipe open until then.
        _wait_for_end(ours)
        os.close(ours)
        self._ship()
        lines = log.read_text(errors="replace").strip().splitlines()
        ending = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._link.put(
            {
                "kind": "closed",
                "status": status,
                "error": lines[-1].removeprefix("loadgen: ") if lines else f"its driver {ending}",
                "files": [file.total() for file in self._files],
            }
        )

    def _relay(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "phase_start":
                self._cpu_seconds, self._began_seconds = time.process_time(), time.monotonic()
            case "progress":
                self._link_users(event)
            case "phase_end":
                # before it goes what has been recorded of the phase.
                self._ship()
                event["agent"] = {
                    "cpu_seconds": time.process_time() - self._cpu_seconds,
                    "elapsed_seconds": time.monotonic() - self._began_seconds,
                }
        self._link.put({"kind": "event", "event": event})

    def _link_users(self, event: Mapping[str, Any]) -> None:
        if self._runner is not None:
            self._runner.users = int(event["in_flight"])

    def _ship(self) -> None:
        """Ship what the files have by now, never more at once than the link has room for."""
        while self._is_shipping:
            gevent.sleep(0.01)
        self._is_shipping = True
        try:
            for file in self._files:
                for piece in file.pieces():
                    while self._link.pending >= MOST_OPEN and not self._is_over.is_set():
                        gevent.sleep(0.005)
                    self._link.put({"kind": "piece", **piece})
        finally:
            self._is_shipping = False

    def _localised(self, plan: Plan) -> Plan:
        """The plan for this worker: its own token, and no port of metrics, which the leader serves."""
        wanted, ours = plan.bearer_token_environment, self._bearer_token_environment
        if wanted is not None and ours is None:
            raise PlanError(
                "the plan wants a bearer token; name the environment variable that holds it on this worker's own "
                "command line"
            )
        return plan.model_copy(update={"bearer_token_environment": ours, "metrics_port": None})

    def _end_driver(self) -> None:
        # one that is being started is ended as soon as it is there.
        if self._driver is not None and self._driver.poll() is None:
            self._driver.terminate()


def _watch(descriptor: int, agent: Agent) -> None:
    _wait_for_end(descriptor)
    agent.stop("the leader is gone")


def _wait_for_end(descriptor: int) -> None:
    """Wait until nobody has the other end of a pipe any more."""
    gevent.os.make_nonblocking(descriptor)
    while gevent.os.nb_read(descriptor, 1):
        pass
