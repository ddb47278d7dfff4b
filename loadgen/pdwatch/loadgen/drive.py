"""The load generator as a process: `python -m pdwatch.loadgen.drive --plan PLAN.json --out DIR`.

Standard output carries one JSON object a line: phase_start, progress each second, phase_end, and done at the end. Exit
status: 0 all phases ran, 1 the run broke off, 3 it could not begin, 128 + n stopped by signal n. When it is not 0,
standard error has one line that says why; the journal holds every request that ended, whatever the status.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .errors import LoadgenError, PlanError, TargetUnreachable
from .journal import JOURNAL_NAME
from .plan import load_plan

EXIT_BROKE_OFF: Final = 1
EXIT_COULD_NOT_RUN: Final = 3
EXIT_SIGNAL: Final = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a plan in this process, whose standard library gevent replaces; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pdwatch.loadgen.drive", description="Run the phases of a plan.")
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan, a JSON file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder that gets {JOURNAL_NAME}")
    options = parser.parse_args(arguments)
    try:
        return _drive(options.plan, options.out)
    except (PlanError, TargetUnreachable) as error:
        return _ended(str(error), EXIT_COULD_NOT_RUN)
    except LoadgenError as error:
        return _ended(str(error), EXIT_BROKE_OFF)
    except BrokenPipeError:
        # the interpreter flushes standard output once more at exit, and would trip over the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _ended("nobody reads the progress any more, so the run was ended", EXIT_BROKE_OFF)


def _drive(plan_path: Path, directory: Path) -> int:
    plan = load_plan(plan_path)
    import gevent.monkey

    gevent.monkey.patch_all()
    # must see the patched standard library, which only this process may have.
    from .execution import execute

    number = execute(plan, directory, _report)
    if number is None:
        return 0
    return _ended(f"stopped by {signal.Signals(number).name}", EXIT_SIGNAL + number)


def _report(event: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _ended(message: str, status: int) -> int:
    print(f"loadgen: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
