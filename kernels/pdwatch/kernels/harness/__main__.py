"""`python -m pdwatch.kernels.harness check [NAME …]`: the harness where only this portion is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pdwatch.kernels.harness.command import check, list_kernels
from pdwatch.kernels.harness.registry import UnknownKernel
from pdwatch.kernels.harness.run import UnknownName

EXIT_COULD_NOT_RUN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 0 pass, 1 fail, 2 something was not checked, 3 could not run."""
    parser = argparse.ArgumentParser(prog="python -m pdwatch.kernels.harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check", help="run the checks")
    checked.add_argument("names", nargs="*", metavar="NAME", help="kernels; a name may end in *")
    checked.add_argument("--device", choices=("cpu", "cuda"))
    checked.add_argument("--seeds", type=int, default=1)
    checked.add_argument("--seed", type=int, default=0, help="the first seed")
    checked.add_argument("--check", action="append", default=[], metavar="CHECK")
    checked.add_argument("--junit", type=Path)
    checked.add_argument("--html", type=Path)
    checked.add_argument("--json-file", type=Path)
    checked.add_argument("--json", action="store_true")
    checked.add_argument("--quiet", action="store_true")
    listed = commands.add_parser("list", help="list the kernels")
    listed.add_argument("--json", action="store_true")
    listed.add_argument("--checks", action="store_true")
    given = parser.parse_args(arguments)
    if given.command == "list":
        list_kernels(given.json, given.checks)
        return 0
    try:
        return check(
            given.names,
            device=given.device,
            seeds=given.seeds,
            first_seed=given.seed,
            checks=given.check,
            junit=given.junit,
            html=given.html,
            json_file=given.json_file,
            as_json=given.json,
            quiet=given.quiet,
        )
    except (UnknownKernel, UnknownName) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
