"""One run of a plan in this process, from the first look at the targets to the closed journal."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import gevent

from .errors import PlanError
from .feeder import Feeder
from .journal import JOURNAL_NAME
from .phases import PhaseRunner, Report
from .plan import Plan
from .reachability import check_targets
from .recorder import Recorder
from .session import Session

# the threads that serve the helpers' pipes share the interpreter with the loop that stamps arrivals: at the default
# 5 ms, an arrival could wait that long for them.
_SWITCH_INTERVAL_SECONDS: Final = 0.0005


def execute(plan: Plan, directory: Path, report: Report) -> int | None:
    """Run a plan, its journal going to `directory`; the number of the signal that stopped it, None at the plan's end.

    Raises PlanError and TargetUnreachable before anything is sent, LoadgenError when the run breaks off.
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
    check_targets(plan, plan.bearer_token())
    journal = _new_journal(directory)
    with closing(Feeder(plan)) as feeder, closing(Recorder(journal)) as recorder:
        _keep_out_of_the_way()
        if not signals:
            runners.append(PhaseRunner(Session(plan, feeder, recorder), report))
            runners[0].run()
    if signals:
        return signals[0]
    report({"event": "done", "phases": len(plan.phases)})
    return None


def _keep_out_of_the_way() -> None:
    """Shorten what can stand between an arrival and its stamp."""
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    # the modules loaded so far are not looked through for garbage again, which takes tens of milliseconds.
    gc.collect()
    gc.freeze()


def _new_journal(directory: Path) -> Path:
    journal = directory / JOURNAL_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        journal.touch(exist_ok=False)
    except FileExistsError:
        raise PlanError(f"{journal} is there already; give an empty folder") from None
    except OSError as error:
        raise PlanError(f"{directory} cannot be written to ({error.strerror}); give another folder") from None
    return journal
