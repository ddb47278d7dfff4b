"""Right results: against float64, at odd sizes, with ties, at the edges; and a reference that means something."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pdwatch.kernels.harness.checks.base import Check, CheckFailed, Subject, always, nothing, on_host
from pdwatch.kernels.harness.compare import allowance
from pdwatch.kernels.harness.kernel import Expected, Inputs, Kind
from pdwatch.kernels.harness.memory import changed_inputs, snapshot


def reference(subject: Subject) -> None:
    """A comparison that zeros, or another row's results, would pass proves nothing.

    Also: the reference leaves its inputs alone, and agrees with a second one by another hand where there is one.
    """
    for case in subject.cases():
        inputs = on_host(case.inputs)
        before = snapshot(inputs)
        expected = subject.kernel.reference(inputs)
        if changed := changed_inputs(inputs, before):
            raise CheckFailed(f"case `{case.name}`: the reference changed `{changed[0]}`")
        for name, entry in expected.items():
            if entry.value.is_floating_point() and entry.value.dtype != torch.float64:
                raise CheckFailed(f"`{name}` of the reference is {entry.value.dtype}: compute it in float64")
            if case.kind is Kind.RANDOM:
                _requires_resolution(subject, f"case `{case.name}`: `{name}`", name, entry)
        _requires_agreement(subject, case.name, inputs, expected)


def _requires_resolution(subject: Subject, where: str, name: str, entry: Expected) -> None:
    tolerance = subject.kernel.tolerances.get(name)
    if tolerance is None or entry.value.numel() == 0:
        return
    flat = entry.value.flatten(1) if entry.value.dim() > 1 else entry.value[:, None]
    if len(flat) > 1 and torch.equal(flat[0], flat[1]):
        raise CheckFailed(f"{where}: two rows have equal results: make the rows differ")
    if not entry.value.is_floating_point():
        return
    defined = torch.ones_like(entry.value, dtype=torch.bool) if entry.defined is None else entry.defined
    finite = defined & entry.value.isfinite()
    # half of the results must be ten times what the tolerance lets pass; the rest may be small by chance
    resolved = finite & (entry.value.abs() > 10 * allowance(entry, tolerance, torch.bfloat16))
    if int(resolved.sum()) * 2 < int(finite.sum()):
        raise CheckFailed(f"{where} cannot be told from zero under its tolerance: scale the inputs up")


def _requires_agreement(subject: Subject, case: str, inputs: Inputs, expected: Mapping[str, Expected]) -> None:
    second = subject.kernel.second_reference
    if second is None:
        return
    other = second(inputs)
    for name, entry in expected.items():
        if name not in other:
            continue
        found, value = other[name].to(torch.float64), entry.value.to(torch.float64)
        scale = value.abs() if entry.magnitude is None else entry.magnitude
        defined = torch.ones_like(value, dtype=torch.bool) if entry.defined is None else entry.defined
        close = (found == value) | ((found - value).abs() <= 1e-9 * (scale + value.abs()) + 1e-12)
        if bool((defined & ~close).any()):
            raise CheckFailed(f"case `{case}`: `{name}` of the two references differs: one of them is wrong")


def numerics(subject: Subject) -> None:
    _compare(subject, Kind.RANDOM)


def odd_sizes(subject: Subject) -> None:
    _compare(subject, Kind.ODD)


def ties(subject: Subject) -> None:
    _compare(subject, Kind.TIES)


def adversarial(subject: Subject) -> None:
    _compare(subject, Kind.ADVERSARIAL)


def _compare(subject: Subject, kind: Kind) -> None:
    for case in subject.cases(kind):
        # the kernel runs first: freed memory of a reference must not hold the answer
        outputs = subject.run(case.inputs)
        subject.require_right(f"case `{case.name}`", case.inputs, outputs)


CHECKS = (
    Check(
        "reference",
        "a test that cannot fail: outputs near zero, rows alike, a reference in low precision or changing its inputs",
        reference,
        always,
        nothing,
    ),
    Check("numerics", "B15, B17: wrong strides, heads, scales, layouts, rounding", numerics, always, nothing),
    Check("odd_sizes", "B14, B15: sizes off every tile edge, odd page sizes, few heads", odd_sizes, always, nothing),
    Check("ties", "equal scores: many dead positions score exactly 0", ties, always, nothing),
    Check(
        "adversarial",
        "B11, B16: huge scores, empty rows, all masked, all -1, duplicates, infinite sinks",
        adversarial,
        always,
        nothing,
    ),
)
