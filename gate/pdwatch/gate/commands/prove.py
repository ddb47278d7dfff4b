"""`pdwatch prove`: show that the gate fires on every fault and stays silent without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def prove(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs; finished ones in it are not repeated.")],
    clean: Annotated[int, typer.Option(min=0, help="Runs without a fault, each with a seed of its own.")] = 3,
    fault: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this fault; repeatable. (default all)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first clean run and of every fault's run.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- GATE OPTIONS]", help="Passed on to each `pdwatch gate`.")
    ] = None,
) -> None:
    """Run the gate once for every fault and several times without one.

    Every fault must FAIL with its own signature and leave level 1 clean; every
    run without a fault must PASS.

    Exit codes: 0 all as it must be, 1 something is not, 3 could not run.

    Example:

      pdwatch prove --out runs/proof --clean 10
    """
    from pdwatch.gate.printable import printable
    from pdwatch.gate.proof import run_trial, trials
    from pdwatch.stack.embedded import faults

    known = {info.name: info.signature for info in faults.catalogue()}
    for name in fault or ():
        if name not in known:
            raise typer.BadParameter(f"`{name}` is no fault, use one of {', '.join(known)}", param_hint="--fault")
    wanted = [(name, known[name]) for name in known if not fault or name in fault]
    outcomes = []
    for trial in trials(clean, wanted, seed):
        outcome = run_trial(trial, out, options or ())
        outcomes.append(outcome)
        begins = "" if outcome.first_level is None else f" {outcome.signature} from level {outcome.first_level}"
        line = f"{trial.name:<24} {outcome.verdict.result.value}{begins}; {outcome.complaint or 'as it must be'}"
        print(printable(line), file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps([outcome.describe() for outcome in outcomes], indent=1))
    raise typer.Exit(1 if any(outcome.complaint for outcome in outcomes) else 0)
