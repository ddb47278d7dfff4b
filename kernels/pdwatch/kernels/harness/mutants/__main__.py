"""`python -m pdwatch.kernels.harness.mutants`: every mutant must be killed, every good kernel must pass."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pdwatch.kernels.harness.kernel import KernelUnderTest
from pdwatch.kernels.harness.mutants.base import Mutant
from pdwatch.kernels.harness.mutants.good import good_kernels
from pdwatch.kernels.harness.mutants.run import EAGER, Kill, kill_all
from pdwatch.kernels.harness.outcome import Outcome, Report
from pdwatch.kernels.harness.registry import Catalogue, Entry
from pdwatch.kernels.harness.run import pick_device, run_checks


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when all are killed and nothing good fails, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m pdwatch.kernels.harness.mutants", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the good kernels")
    parser.add_argument("--json-file", type=Path)
    given = parser.parse_args(arguments)
    device = pick_device(given.device)
    mutants, good = _herd(device)
    report = run_checks(
        Catalogue(tuple(Entry(kernel.name, "mutants", kernel) for kernel in good)), given.device, seeds=given.seeds
    )
    failed = [result for result in report.results if result.outcome is Outcome.FAIL]
    for result in failed:
        print(f"FAIL good kernel {result.kernel}: {result.check}: {result.detail}", flush=True)
    print(f"good kernels: {report.headline}", flush=True)
    kills = kill_all(mutants, device, _tell)
    survivors = [entry for entry in kills if entry.survived]
    print(f"{len(kills) - len(survivors)} of {len(kills)} mutants killed")
    if given.json_file is not None:
        given.json_file.write_text(json.dumps(_document(kills, report), indent=2) + "\n", encoding="utf-8")
    return 1 if survivors or failed else 0


def _herd(device: torch.device) -> tuple[Sequence[Mutant], list[KernelUnderTest]]:
    if device.type == "cpu":
        return EAGER, good_kernels()
    # the others' module needs Triton
    from pdwatch.kernels.harness.mutants import gpu

    return gpu.MUTANTS, gpu.good_kernels()


def _tell(entry: Kill) -> None:
    words = f"SURVIVED {', '.join(entry.survived)}:" if entry.survived else "killed by"
    checks = ", ".join(entry.mutant.killed_by)
    print(
        f"{entry.mutant.bug:12} {entry.mutant.name}: {words} {checks} ({entry.seconds:.1f} s) {entry.words}", flush=True
    )


def _document(kills: Sequence[Kill], report: Report) -> dict[str, object]:
    return {
        "good": report.document(),
        "mutants": [
            {
                "name": entry.mutant.name,
                "bug": entry.mutant.bug,
                "what": entry.mutant.what,
                "killed_by": list(entry.mutant.killed_by),
                "survived": list(entry.survived),
                "words": entry.words,
            }
            for entry in kills
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
