"""`check` and `list` as functions: what the command lines of this portion and of the gate share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pdwatch.kernels.harness.registry import catalogue
from pdwatch.kernels.harness.report import write_reports
from pdwatch.kernels.harness.run import run_checks
from pdwatch.kernels.harness.terminal import print_catalogue, print_report, progress_line


def check(
    names: Sequence[str] = (),
    *,
    device: str | None = None,
    seeds: int = 1,
    first_seed: int = 0,
    checks: Sequence[str] = (),
    junit: Path | None = None,
    html: Path | None = None,
    json_file: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Runs the checks, writes what is asked for, prints a table or JSON; the exit code (see outcome.Report).

    Raises UnknownKernel and UnknownName.
    """
    kernels = catalogue().named(names)
    report = run_checks(kernels, device, first_seed, seeds, checks, None if quiet else progress_line)
    write_reports(report, junit, html, json_file)
    if as_json:
        print(json.dumps(report.document(), indent=2))
    else:
        print_report(report)
    return report.exit_code


def list_kernels(as_json: bool = False, checks: bool = False) -> None:
    """Prints the kernels that are known."""
    known = catalogue()
    if not as_json:
        print_catalogue(known, checks)
        return
    listed = [
        {
            "name": entry.name,
            "family": None if entry.kernel is None else entry.kernel.family.value,
            "source": entry.source,
            "problem": entry.problem or None,
        }
        for entry in known.entries
    ]
    print(json.dumps(listed, indent=2))
