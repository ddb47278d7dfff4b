"""Comparison of results: with a reference under a tolerance, and with other results bit by bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pdwatch.kernels.harness.kernel import Expected, Inputs, KernelUnderTest, Outputs, Tolerance


def verdict(kernel: KernelUnderTest, inputs: Inputs, actual: Outputs, expected: Mapping[str, Expected]) -> str | None:
    """What is wrong with `actual`, in one sentence; None when it is right."""
    if kernel.judge is not None:
        return kernel.judge(inputs, actual, expected)
    for name, tolerance in kernel.tolerances.items():
        if name not in actual:
            return f"no result `{name}`"
        if problem := disagreement(actual[name], expected[name], tolerance):
            return f"`{name}`: {problem}"
    return None


def disagreement(actual: Tensor, expected: Expected, tolerance: Tolerance) -> str | None:
    """Where `actual` is further from the reference than the tolerance allows."""
    value = expected.value
    if actual.shape != value.shape:
        return f"shape {list(actual.shape)}, the reference has {list(value.shape)}"
    defined = torch.ones_like(value, dtype=torch.bool) if expected.defined is None else expected.defined
    if not value.is_floating_point():
        return _first(defined & (actual != value), actual, value)
    found = actual.to(torch.float64)
    # a NaN or infinity belongs exactly where the reference has it
    special = ~value.isfinite()
    same = (found == value) | (found.isnan() & value.isnan())
    if problem := _first(defined & (special | ~found.isfinite()) & ~same, found, value):
        return problem
    allowed = allowance(expected, tolerance, actual.dtype)
    error = (found - value).abs()
    wrong = defined & ~special & (error > allowed)
    if not wrong.any():
        return None
    excess = torch.where(wrong, error / allowed.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    place = _place(excess.argmax(), value)
    return (
        f"{int(wrong.sum())} of {int(defined.sum())} elements are off; at {place} {_at(found, place):.6g} instead of "
        f"{_at(value, place):.6g}, {_at(excess, place):.3g} times the tolerance ({tolerance.reason})"
    )


def allowance(expected: Expected, tolerance: Tolerance, dtype: torch.dtype) -> Tensor:
    """How far from the reference a result of `dtype` may lie, for each element."""
    return tolerance.ulps * ulp(expected.value, dtype) + tolerance.of_magnitude * _magnitude(expected)


def differing(actual: Outputs, expected: Outputs, defined: Mapping[str, Tensor | None] | None = None) -> str | None:
    """Where two sets of results differ in any bit; elements outside `defined` do not count."""
    for name, value in expected.items():
        other = actual.get(name)
        if other is None or other.shape != value.shape or other.dtype != value.dtype:
            return f"`{name}` is missing or has another shape or dtype"
        different = bits(other) != bits(value)
        mask = None if defined is None else defined.get(name)
        if mask is not None:
            different &= mask.to(different.device)
        if problem := _first(different, other, value):
            return f"`{name}`: {problem}"
    return None


def bits(tensor: Tensor) -> Tensor:
    """The elements as integers of the same width, so that NaN equals itself and -0 differs from +0."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor if not tensor.is_floating_point() else tensor.contiguous().view(widths[tensor.element_size()])


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance to the next number of `dtype` at `value`, float64. 0 for integers."""
    if not dtype.is_floating_point:
        return torch.zeros_like(value)
    information = torch.finfo(dtype)
    magnitude = value.abs().nan_to_num(0.0, 0.0, 0.0).clamp(min=information.tiny)
    return torch.exp2(magnitude.log2().floor()) * information.eps


def _magnitude(expected: Expected) -> Tensor:
    if expected.magnitude is not None:
        return expected.magnitude
    finite = expected.value.nan_to_num(0.0, 0.0, 0.0)
    return finite.square().mean(dim=-1, keepdim=True).sqrt() if finite.dim() else finite.abs()


def _first(wrong: Tensor, actual: Tensor, expected: Tensor) -> str | None:
    count = int(wrong.sum())
    if count == 0:
        return None
    place = _place(wrong.to(torch.uint8).argmax(), wrong)
    return (
        f"{count} of {wrong.numel()} elements differ; the first at {place}: {_at(actual, place):g} "
        f"instead of {_at(expected, place):g}"
    )


def _place(flat: Tensor, like: Tensor) -> tuple[int, ...]:
    return tuple(int(index) for index in torch.unravel_index(flat, like.shape))


def _at(tensor: Tensor, place: tuple[int, ...]) -> float:
    return float(tensor[place])
