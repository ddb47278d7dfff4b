"""The load generator as a process: `python -m pdwatch.loadgen.drive --plan PLAN.json --out DIR`.

Standard output carries one JSON object a line: phase_start, progress each second, ended_early where a phase had to be,
phase_end, and done at the end. Exit status: 0 all phases ran, 1 the run broke off, 3 it could not begin, 128 + n
stopped by signal n. When it is not 0, standard error has one line that says why; the journal holds every request that
ended, whatever the status.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .descriptors import raise_limit
from .errors import LoadgenError, PlanError, TargetUnreachable
from .journal import JOURNAL_NAME
from .plan import load_plan
from .share import Share

EXIT_BROKE_OFF: Final = 1
EXIT_COULD_NOT_RUN: Final = 3
EXIT_SIGNAL: Final = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a plan in this process; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pdwatch.loadgen.drive", description="Run the phases of a plan.")
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan, a JSON file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder that gets {JOURNAL_NAME}")
    parser.add_argument(
        "--share", type=_share, default=Share(), metavar="I/N", help="send part I (from 0) of N, others the rest"
    )
    parser.add_argument(
        "--in-step", action="store_true", help="take phases and times from standard input, as a leader tells them"
    )
    options = parser.parse_args(arguments)
    # so much is loaded in what follows that looking for garbage in it takes longer than the garbage is worth.
    gc.disable()
    try:
        return _drive(options.plan, options.out, options.share, options.in_step)
    except (PlanError, TargetUnreachable) as error:
        return _ended(str(error), EXIT_COULD_NOT_RUN)
    except LoadgenError as error:
        return _ended(str(error), EXIT_BROKE_OFF)
    except BrokenPipeError:
        # the interpreter flushes standard output once more at exit, and would trip over the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _ended("nobody reads the progress any more, so the run was ended", EXIT_BROKE_OFF)


def _drive(plan_path: Path, directory: Path, share: Share, is_in_step: bool) -> int:
    plan = load_plan(plan_path)
    raise_limit()
    # the clerk begins as a copy of this process, which must not have gevent's loop yet.
    from .clerk import Clerk, start_clerk

    make_clerk: type[Clerk] = Clerk
    if is_in_step:
        from .scale.gaps import SharedClerk

        make_clerk = SharedClerk
    clerk = start_clerk(plan, make_clerk)
    # everything here that waits does so through gevent by name; replacing the standard library takes 0.1 s.
    os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
    from .execution import execute
    from .phases import PhaseRunner

    make_runner: type[PhaseRunner] = PhaseRunner
    if is_in_step:
        from .scale.step import StepRunner

        make_runner = StepRunner
    number = execute(plan, directory, clerk, share, _report, make_runner)
    if number is None:
        return 0
    return _ended(f"stopped by {signal.Signals(number).name}", EXIT_SIGNAL + number)


def _share(text: str) -> Share:
    index, _, of = text.partition("/")
    if not (index.isdecimal() and of.isdecimal() and int(index) < int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write it as 0/2, up to 1/2")
    return Share(int(index), int(of))


def _report(event: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _ended(message: str, status: int) -> int:
    print(f"loadgen: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    exit_status = main()
    # taking down what was loaded would take longer than the load of a small run.
    sys.stdout.flush()
    os._exit(exit_status)
