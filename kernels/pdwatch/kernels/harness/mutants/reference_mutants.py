"""Mutants of what a kernel is compared with: tests that cannot fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from pdwatch.kernels.harness.families.sparse_mla import mla_reference
from pdwatch.kernels.harness.kernel import Case, Expected, Inputs, KernelUnderTest, Outputs, Tolerance
from pdwatch.kernels.harness.mutants.base import Mutant
from pdwatch.kernels.harness.mutants.good import mla_under_test
from pdwatch.kernels.harness.mutants.mla import EagerSparseMla


def _changed(**fields: object) -> Callable[[], KernelUnderTest]:
    return lambda: replace(mla_under_test(EagerSparseMla()), **fields)  # type: ignore[arg-type]  # by field name


def _in_float32(inputs: Inputs) -> dict[str, Expected]:
    return {
        name: Expected(entry.value.to(torch.float32), entry.magnitude) for name, entry in mla_reference(inputs).items()
    }


def _writing(inputs: Inputs) -> dict[str, Expected]:
    inputs["query"].mul_(0.5)
    return mla_reference(inputs)


def _without_sink(inputs: Inputs) -> Outputs:
    return {name: entry.value for name, entry in mla_reference({**inputs, "sink": None}).items()}


def _equal_rows(seed: int, device: torch.device) -> Iterator[Case]:
    case = next(iter(mla_under_test(EagerSparseMla()).cases(seed, device)))
    names = ("query", "window_indices", "window_lengths", "indexed_indices", "indexed_lengths")
    same = {name: case.inputs[name][:1].expand_as(case.inputs[name]).clone() for name in names}
    yield Case(case.name, case.kind, {**case.inputs, **same})


_LOOSE = {name: Tolerance("it passed with this one", of_magnitude=0.5) for name in ("out", "lse")}

MUTANTS = tuple(
    Mutant(name, "imp #33", what, ("reference",), kernel)
    for name, what, kernel in (
        ("tolerance_of_half", "The tolerance is as large as the results.", _changed(tolerances=_LOOSE)),
        ("reference_in_float32", "The reference is as coarse as the kernel.", _changed(reference=_in_float32)),
        ("reference_writes_inputs", "The reference changes the inputs it is given.", _changed(reference=_writing)),
        ("references_differ", "One of two references forgets the sink.", _changed(second_reference=_without_sink)),
        ("rows_alike", "All rows of the batch are the same, so a mix-up shows nothing.", _changed(cases=_equal_rows)),
    )
)
