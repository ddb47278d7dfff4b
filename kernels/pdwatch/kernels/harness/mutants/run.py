"""Runs mutants: which checks kill which."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from pdwatch.kernels.harness.mutants import (
    indexer_mutants,
    mla_arithmetic,
    mla_state,
    reference_mutants,
    topk_mutants,
)
from pdwatch.kernels.harness.mutants.base import Mutant
from pdwatch.kernels.harness.outcome import Outcome
from pdwatch.kernels.harness.run import pick_checks, run_check

EAGER = (
    *mla_arithmetic.HERD.mutants,
    *mla_state.HERD.mutants,
    *indexer_mutants.HERD.mutants,
    *topk_mutants.HERD.mutants,
    *reference_mutants.MUTANTS,
)


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of a mutant: the checks that should have killed it and did not, and what the first one said."""

    mutant: Mutant
    survived: tuple[str, ...]
    words: str
    seconds: float


def kill(mutant: Mutant, device: torch.device, seeds: Sequence[int] = (0, 1, 2)) -> Kill:
    """Runs the checks that must kill the mutant; each may take all the seeds."""
    started = time.perf_counter()
    kernel = mutant.kernel()
    results = [run_check(check, kernel, device, seeds) for check in pick_checks(mutant.killed_by)]
    survived = tuple(result.check for result in results if result.outcome is not Outcome.FAIL)
    words = "; ".join(f"{result.check}: {result.detail}" for result in results)
    return Kill(mutant, survived, words, time.perf_counter() - started)


def kill_all(
    mutants: Iterable[Mutant], device: torch.device, progress: Callable[[Kill], None] | None = None
) -> list[Kill]:
    kills = []
    for mutant in mutants:
        kills.append(kill(mutant, device))
        if progress is not None:
            progress(kills[-1])
    return kills
