"""The leader of several drivers: `python -m pdwatch.loadgen.scale.lead --plan PLAN.json --out DIR --processes N`.

Starts N workers on this machine, or waits for those that join from elsewhere (`--expect-workers N --bind HOST:PORT`),
and runs the plan's phases on all of them in step. Standard output carries the same events as the driver's own
(`pdwatch.loadgen.drive`), made from the records of all, and `waiting`, `web` and `worker_lost`. Exit statuses are the
driver's: 0 all phases ran, 1 the run broke off, 3 it could not begin, 128 + n stopped by signal n.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import gevent

from ..drive import EXIT_BROKE_OFF, EXIT_COULD_NOT_RUN, EXIT_SIGNAL
from ..errors import LoadgenError, PlanError, TargetUnreachable
from ..plan import load_plan
from .channel import quiet_locust
from .crew import Crew, Stopped, Worker, WorkerLost
from .ledger import Ledger
from .stage import Stage, Watcher
from .working import NICE

WORKERS_NAME: Final = "workers.json"
LOCAL_FOLDER: Final = "workers"
DEFAULT_BIND: Final = "127.0.0.1:5557"


def lead(arguments: Sequence[str]) -> int:
    """Lead one run in this process, whose standard library gevent has replaced; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pdwatch.loadgen.scale.lead", description="Lead several drivers.")
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan, a JSON file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for what is recorded")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--processes", type=_count, metavar="N", help="start so many workers on this machine")
    who.add_argument("--expect-workers", type=_count, metavar="N", help="wait for so many workers to join")
    parser.add_argument("--bind", type=_address, default=_address(DEFAULT_BIND), metavar="HOST:PORT")
    parser.add_argument("--web", type=_address, metavar="HOST:PORT", help="show the run in Locust's web UI there")
    options = parser.parse_args(arguments)
    quiet_locust()
    try:
        return Lead(options).run()
    except (PlanError, TargetUnreachable) as error:
        return _ended(str(error), EXIT_COULD_NOT_RUN)
    except LoadgenError as error:
        return _ended(str(error), EXIT_BROKE_OFF)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _ended("nobody reads the progress any more, so the run was ended", EXIT_BROKE_OFF)


class Lead:
    """One run, from the first worker to the last record."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._plan = load_plan(options.plan)
        self._signals: list[int] = []
        self._watchers: list[Watcher] = []
        is_local = options.processes is not None
        # workers of our own find any port; those of others must know it.
        host, port = ("127.0.0.1", 0) if is_local else options.bind
        self._wanted: int = options.processes if is_local else options.expect_workers
        self._crew = Crew(host, port, self._wanted, self._event)
        self._stage = Stage(self._plan, self._crew, _report, self._watchers)
        for number in (signal.SIGTERM, signal.SIGINT):
            gevent.signal_handler(number, self._stop, number)

    def run(self) -> int:
        """Lead; the exit status. Raises LoadgenError."""
        options, crew, plan = self._options, self._crew, self._plan
        with contextlib.ExitStack() as stack:
            stack.callback(crew.close)
            crew.ledger = Ledger(options.out, self._wanted, self._stage.row)
            self._watch(stack)
            if options.processes is not None:
                crew.start_local(options.out / LOCAL_FOLDER, plan.bearer_token_environment)
                os.nice(NICE)
            done, error = None, None
            try:
                crew.gather(_report)
                crew.send_plan(plan)
                done = self._stage.run()
            except Stopped:
                pass
            except WorkerLost as lost:
                error = lost
            self._collect(is_early=done is None)
        if error is not None:
            return self._lost(error)
        if done is None:
            number = self._signals[0] if self._signals else None
            if number is None:
                return _ended("stopped in the web UI", EXIT_BROKE_OFF)
            return _ended(f"stopped by {signal.Signals(number).name}", EXIT_SIGNAL + number)
        _report({"event": "done", **done, "workers": self._wanted})
        return 0

    def _watch(self, stack: contextlib.ExitStack) -> None:
        if self._plan.metrics_port is not None:
            from .exhibit import Exhibit

            exhibit = Exhibit(self._plan)
            stack.callback(exhibit.close)
            self._watchers.append(exhibit)
        if self._options.web is not None:
            from .web import LIVE_KEY, WebBoard

            board = WebBoard(self._crew.runner, self._plan, *self._options.web)
            stack.callback(board.close)
            host, port = self._options.web
            _report({"event": "web", "url": f"http://{host}:{port}/?tab={LIVE_KEY}"})
            self._watchers.append(board)

    def _event(self, worker: Worker, event: Mapping[str, Any]) -> None:
        self._stage.event(worker, event)

    def _stop(self, number: int) -> None:
        self._signals.append(number)
        self._crew.stop()

    def _collect(self, *, is_early: bool) -> None:
        """Bring in everything, hold it against what was sent, and tell of it."""
        crew, options = self._crew, self._options
        assert crew.ledger is not None
        crew.close_drivers(is_early=is_early)
        crew.ledger.close()
        records = [
            {
                "worker": worker.index,
                **{key: worker.hello[key] for key in ("host", "process", "python", "directory")},
                **crew.ledger.counts(worker.index),
                "is_whole": worker.closed is not None,
                "lost": worker.lost,
            }
            for worker in crew.workers
        ]
        path = options.out / WORKERS_NAME
        path.write_text(json.dumps({"workers": records, "clocks": self._stage.clock_records}, indent=2) + "\n")
        for worker in crew.workers:
            if worker.lost is not None:
                _report({"event": "worker_lost", "worker": worker.index, "reason": worker.lost})
        if options.processes is not None and all(worker.lost is None for worker in crew.workers):
            # all of it is in our own files by now, and was counted.
            shutil.rmtree(options.out / LOCAL_FOLDER, ignore_errors=True)

    def _lost(self, error: WorkerLost) -> int:
        could_not_begin = [
            worker
            for worker in self._crew.workers
            if worker.closed is not None and worker.closed["status"] == EXIT_COULD_NOT_RUN
        ]
        if could_not_begin:
            return _ended(could_not_begin[0].closed["error"], EXIT_COULD_NOT_RUN)  # type: ignore[index]  # they are those that have one
        return _ended(str(error), EXIT_BROKE_OFF)


def _report(event: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _ended(message: str, status: int) -> int:
    print(f"loadgen: {message}", file=sys.stderr)
    return status


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers; give 1 to 1024")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write it as HOST:PORT")
    return host.strip("[]"), int(port)
