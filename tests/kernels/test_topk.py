"""Choice of positions: order, ties, short rows."""

from __future__ import annotations

import pytest
import torch

from pdwatch.kernels import select_topk

NONE = float("-inf")
CASES = {
    "best-in-ascending-order": ([0.5, 3.0, -1.0, 2.0], 2, [1, 3]),
    "ties-go-to-the-lower-position": ([1.0, 0.0, 0.0, 0.0, 2.0], 3, [0, 1, 4]),
    "all-equal": ([0.0, 0.0, 0.0, 0.0], 2, [0, 1]),
    "signed-zeros-are-equal": ([0.0, -0.0, 0.0], 2, [0, 1]),
    "negative-order": ([-3.0, -1.0, -2.0], 2, [1, 2]),
    "short-row-is-the-identity": ([4.0, 9.0, 1.0, NONE, NONE], 4, [0, 1, 2, -1]),
    "exactly-as-many": ([4.0, 9.0, 1.0], 3, [0, 1, 2]),
    "narrower-than-the-count": ([2.0, 1.0], 4, [0, 1, -1, -1]),
    "holes": ([NONE, 1.0, NONE, 5.0], 3, [1, 3, -1]),
    "empty-row": ([NONE, NONE], 2, [-1, -1]),
    "tiny-values-differ": ([1e-45, 0.0, -1e-45], 2, [0, 1]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("logits", "count", "expected"), CASES.values(), ids=CASES.keys())
def test_selection(logits: list[float], count: int, expected: list[int], dtype: torch.dtype) -> None:
    assert select_topk(torch.tensor([logits], dtype=dtype), count).tolist() == [expected]


@pytest.mark.parametrize("width", [5, 63, 200, 1000])
def test_float32_equals_the_stable_sort_of_float64(width: int) -> None:
    torch.manual_seed(width)
    # few distinct values, so that most rows are cut inside a tie.
    logits = torch.randint(-3, 4, (40, width)).float() / 2

    assert torch.equal(select_topk(logits, 64), select_topk(logits.double(), 64))


def test_the_choice_does_not_depend_on_the_batch_or_the_width() -> None:
    torch.manual_seed(3)
    logits = torch.randn(9, 300).round(decimals=1)
    wide = torch.cat([logits, torch.full((9, 500), NONE)], dim=1)

    together = select_topk(wide, 64)

    for row in range(9):
        assert torch.equal(together[row : row + 1], select_topk(logits[row : row + 1], 64))
