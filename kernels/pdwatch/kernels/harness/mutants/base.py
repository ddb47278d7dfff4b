"""A mutant: which bug it plants, and the checks that must find it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pdwatch.kernels.harness.kernel import KernelUnderTest
from pdwatch.kernels.harness.mutants.good import indexer_under_test, mla_under_test, topk_under_test
from pdwatch.kernels.harness.mutants.indexer import EagerIndexer
from pdwatch.kernels.harness.mutants.mla import EagerSparseMla
from pdwatch.kernels.harness.mutants.topk import EagerTopk

Eager = EagerSparseMla | EagerIndexer | EagerTopk
Planted = TypeVar("Planted", bound=type[Eager])


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kernel with one bug.

    `bug`        class of the bug, B1 to B17, or a word for those that have no number
    `what`       the mistake, in one sentence
    `killed_by`  every one of these checks must fail on it
    """

    name: str
    bug: str
    what: str
    killed_by: tuple[str, ...]
    kernel: Callable[[], KernelUnderTest]
    device: str = "cpu"


class Herd:
    """The mutants of one module, in the order in which they stand there."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def planted(self, bug: str, *killed_by: str) -> Callable[[Planted], Planted]:
        """Registers an eager kernel with a bug; the docstring says what the bug is."""

        def register(kernel: Planted) -> Planted:
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", kernel.__name__).lower()
            what = (kernel.__doc__ or "").strip().splitlines()[0]
            self.mutants.append(Mutant(name, bug, what, killed_by, lambda: _under_test(kernel(), f"mutant.{name}")))
            return kernel

        return register


def _under_test(kernel: Eager, name: str) -> KernelUnderTest:
    if isinstance(kernel, EagerSparseMla):
        return mla_under_test(kernel, name)
    return indexer_under_test(kernel, name) if isinstance(kernel, EagerIndexer) else topk_under_test(kernel, name)
