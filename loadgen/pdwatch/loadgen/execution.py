"""One run of a plan in this process, from the first look at the targets to the closed journal."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gevent

from .descriptors import check_limit
from .desk import Desk
from .errors import PlanError
from .journal import JOURNAL_NAME
from .meter import Meter
from .phases import PhaseRunner, Report
from .pipe import Child
from .plan import Plan
from .poller import Poller
from .reachability import check_targets
from .row import ROWS_NAME
from .session import Session, connectors
from .share import Share


def execute(
    plan: Plan,
    directory: Path,
    clerk: Child,
    share: Share,
    report: Report,
    make_runner: Callable[[Session, Report], PhaseRunner] = PhaseRunner,
) -> int | None:
    """Run this driver's share of a plan, its journal going to `directory`.

    The number of the signal that stopped it, None at the plan's end. Raises PlanError and TargetUnreachable before
    anything is sent, LoadgenError when the run breaks off.
    """
    signals: list[int] = []
    runners: list[PhaseRunner] = []

    def stop(number: int) -> None:
        signals.append(number)
        for runner in runners:
            runner.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, stop, number)
    # locust tells its log of every spawn; what matters of it is in the report.
    logging.getLogger("locust").addHandler(logging.NullHandler())
    poller, meter = Poller(), Meter()
    check_limit(plan, share)
    check_targets(plan, connectors(plan, poller), meter, plan.bearer_token())
    _prepare(directory)
    done = None
    with closing(Desk(clerk, poller, meter, share, directory)) as desk, closing(meter):
        try:
            desk.open()
        except PlanError:
            # nothing was sent: the same folder will do for the next try.
            for name in (JOURNAL_NAME, ROWS_NAME):
                (directory / name).unlink(missing_ok=True)
            raise
        meter.watch(poller, {"driver": os.getpid(), "clerk": desk.process})
        gc.enable()
        if not signals:
            runners.append(make_runner(Session(plan, poller, desk, meter, share), report))
            done = runners[0].run()
    if signals:
        return signals[0]
    report({"event": "done", **(done or {})})
    return None


def _prepare(directory: Path) -> None:
    journal = directory / JOURNAL_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        journal.touch(exist_ok=False)
    except FileExistsError:
        raise PlanError(f"{journal} is there already; give an empty folder") from None
    except OSError as error:
        raise PlanError(f"{directory} cannot be written to ({error.strerror}); give another folder") from None
