"""The harness is worth what it finds: every mutant dies by the checks it names, every good kernel passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from pdwatch.kernels.harness.checks import CHECKS
from pdwatch.kernels.harness.kernel import KernelUnderTest
from pdwatch.kernels.harness.mutants.base import Mutant
from pdwatch.kernels.harness.mutants.good import good_kernels
from pdwatch.kernels.harness.mutants.run import EAGER, kill
from pdwatch.kernels.harness.ours import eager_table
from pdwatch.kernels.harness.outcome import Outcome
from pdwatch.kernels.harness.run import run_check

CPU = torch.device("cpu")
SEEDS = 20
# the others run kernels hundreds of times; `python -m pdwatch.kernels.harness.mutants --seeds 20` gives them all seeds
SEEDS_OF_THE_SLOW = 2
QUICK = {"reference", "numerics", "odd_sizes", "ties", "adversarial", "poison", "int64", "arguments"}
GOOD = [*good_kernels(), *eager_table()]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices of these sizes gain nothing from threads, and tests run beside each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("mutant", EAGER, ids=lambda mutant: mutant.name)
def test_the_mutant_is_killed_by_the_checks_it_names(mutant: Mutant) -> None:
    result = kill(mutant, CPU)
    assert not result.survived, result.words


@pytest.mark.parametrize("kernel", GOOD, ids=lambda kernel: kernel.name)
def test_a_good_kernel_passes_every_check_that_a_cpu_can_run(kernel: KernelUnderTest) -> None:
    results = [
        run_check(check, kernel, CPU, range(SEEDS if check.name in QUICK else SEEDS_OF_THE_SLOW)) for check in CHECKS
    ]
    assert [result.words for result in results if result.outcome is Outcome.FAIL] == []
    for result in results:
        if result.outcome is Outcome.NOT_RUN:
            assert result.detail == "needs CUDA"


def test_every_check_that_a_cpu_can_run_has_a_mutant() -> None:
    needed = {check.name for check in CHECKS if check.needs(GOOD[0], CPU) is None}
    assert needed == {name for mutant in EAGER for name in mutant.killed_by}


def test_every_bug_class_that_shows_on_a_cpu_has_a_mutant() -> None:
    planted = Counter(mutant.bug for mutant in EAGER)
    # B1 to B4 are races of streams: test_ordering.py, and the GPU's mutants
    assert {f"B{number}" for number in range(5, 18)} <= planted.keys()
    assert len(EAGER) >= 40
    assert len({mutant.name for mutant in EAGER}) == len(EAGER)
