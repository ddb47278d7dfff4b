"""Tolerances, bits, guarded memory and the judges of top-k."""

from __future__ import annotations

import math

import pytest
import torch

from pdwatch.kernels.harness.compare import differing, disagreement, ulp
from pdwatch.kernels.harness.families.topk import judge_any_ties, judge_by_rule, topk_reference
from pdwatch.kernels.harness.kernel import Case, Expected, Kind, Tolerance
from pdwatch.kernels.harness.memory import HUGE_BYTE, NAN_BYTE, changed_inputs, guard, poisoned, snapshot

NAN, INF = float("nan"), float("inf")


def test_a_tolerance_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="say where the error"):
        Tolerance(" ", ulps=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_ulp_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1.5, 3.0, 100.0, 2.0**-10], dtype=dtype)
    following = (values.view(torch.int32 if dtype is torch.float32 else torch.int16) + 1).view(dtype)
    distance = following.to(torch.float64) - values.to(torch.float64)
    assert torch.equal(ulp(values.to(torch.float64), dtype), distance)


def test_an_error_of_one_row_is_not_averaged_away() -> None:
    value = torch.ones(1000, 8, dtype=torch.float64)
    actual = value.clone().float()
    actual[3, 5] += 0.01
    problem = disagreement(actual, Expected(value), Tolerance("test", of_magnitude=1e-3))
    assert problem is not None
    assert "(3, 5)" in problem
    assert "1 of 8000" in problem


@pytest.mark.parametrize(
    ("actual", "value", "right"),
    [(INF, INF, True), (NAN, NAN, True), (-INF, INF, False), (NAN, 1.0, False), (1.0, NAN, False), (1.0, INF, False)],
)
def test_special_values_belong_where_the_reference_has_them(actual: float, value: float, right: bool) -> None:
    expected = Expected(torch.tensor([[value]], dtype=torch.float64))
    assert (disagreement(torch.tensor([[actual]]), expected, Tolerance("test", of_magnitude=1.0)) is None) is right


def test_elements_that_are_not_defined_do_not_count() -> None:
    expected = Expected(torch.zeros(1, 2, dtype=torch.float64), defined=torch.tensor([[True, False]]))
    assert disagreement(torch.tensor([[0.0, NAN]]), expected, Tolerance("test", ulps=1)) is None


def test_bits_tell_zeros_apart_and_nan_equals_itself() -> None:
    assert differing({"y": torch.tensor([NAN])}, {"y": torch.tensor([NAN])}) is None
    assert differing({"y": torch.tensor([-0.0])}, {"y": torch.tensor([0.0])}) is not None
    assert differing({"y": torch.tensor([1.0])}, {"y": torch.tensor([1.0 + 2**-23])}) is not None


def test_a_write_beside_a_guarded_tensor_shows() -> None:
    wide = torch.arange(12.0).view(3, 4)[:, :2]
    guarded = guard(wide)
    assert torch.equal(guarded.tensor, wide)
    assert guarded.tensor.stride() == wide.stride()
    guarded.tensor.fill_(1.0)
    assert not guarded.overrun()
    # the gap between two rows
    guarded.tensor.as_strided((1,), (1,), guarded.tensor.storage_offset() + 2).fill_(1.0)
    assert guarded.overrun()


def test_poison_stands_in_everything_unread_and_nowhere_else() -> None:
    table = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    data = torch.tensor([1.0, 2.0])
    unread = {"table": torch.tensor([[False, True, True]]), "data": torch.tensor([False, True])}
    case = Case("x", Kind.RANDOM, {"table": table, "data": data, "scale": 2.0}, unread, {"table": 9})
    decoyed, plain = poisoned(case, NAN_BYTE, True), poisoned(case, NAN_BYTE, False)
    assert decoyed["table"].tolist() == [[1, 9, 9]]
    assert plain["table"].tolist() == [[1, -1, -1]]
    assert poisoned(case, HUGE_BYTE, False)["table"].tolist() == [[1, 0x7F7F7F7F, 0x7F7F7F7F]]
    assert decoyed["data"][0] == 1.0
    assert math.isnan(decoyed["data"][1])
    # neighbours in memory
    neighbour = decoyed["table"].as_strided((1,), (1,), decoyed["table"].storage_offset() + 3)
    assert neighbour.item() == 9
    assert plain["scale"] == 2.0


def test_a_change_anywhere_in_the_memory_of_an_input_shows() -> None:
    memory = torch.zeros(8)
    inputs = {"x": memory[2:4], "n": 3}
    before = snapshot(inputs)
    assert changed_inputs(inputs, before) == []
    memory[7] = 1.0
    assert changed_inputs(inputs, before) == ["x"]


def choice(positions: list[int], logits: list[float], length: int, count: int) -> tuple[bool, bool]:
    """Is this choice right by the rule, and right when ties may fall either way?"""
    inputs = {
        "logits": torch.tensor([logits]),
        "lengths": torch.tensor([length], dtype=torch.int32),
        "count": count,
    }
    outputs = {"positions": torch.tensor([positions], dtype=torch.int32)}
    expected = topk_reference(inputs)
    return tuple(judge(inputs, outputs, expected) is None for judge in (judge_by_rule, judge_any_ties))  # type: ignore[return-value]  # it is a pair


@pytest.mark.parametrize(
    ("positions", "logits", "length", "verdicts"),
    [
        ([0, 2], [5.0, 1.0, 3.0], 3, (True, True)),
        ([0, 1], [5.0, 3.0, 3.0], 3, (True, True)),
        ([0, 2], [5.0, 3.0, 3.0], 3, (False, True)),
        ([2, 0], [5.0, 1.0, 3.0], 3, (False, True)),
        ([0, 1], [5.0, 1.0, 3.0], 3, (False, False)),
        ([0, 0], [5.0, 1.0, 3.0], 3, (False, False)),
        ([0, -1], [5.0, 1.0, 3.0], 3, (False, False)),
        ([0, 2], [5.0, 1.0, 9.0], 2, (False, False)),
        ([0, -1], [5.0, 1.0, 9.0], 1, (True, True)),
        ([-1, -1], [5.0, 1.0, 9.0], 0, (True, True)),
        ([1, 2], [NAN, -INF, 3.0], 3, (True, True)),
        ([0, 1], [NAN, NAN, NAN], 3, (True, True)),
        ([0, 1], [0.0, -0.0, 0.0], 3, (True, True)),
    ],
)
def test_choices_are_judged(
    positions: list[int], logits: list[float], length: int, verdicts: tuple[bool, bool]
) -> None:
    assert choice(positions, logits, length, 2) == verdicts
