"""Indexer logits against the formula, written as loops."""

from __future__ import annotations

import pytest
import torch

from pdwatch.kernels import indexer_logits, indexer_logits_prefill

NOT_SCORED = float("-inf")


def formula(query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> list[float]:
    """sum_h weights[h] * relu(query[h] . key[s]) for every s."""
    return [sum(float(w) * max(float(q @ key), 0.0) for w, q in zip(weights, query, strict=True)) for key in keys]


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("lengths", [(1, 2, 3), (7, 12, 5), (4, 8, 12)], ids=["short", "mixed", "page-edges"])
def test_paged_logits_follow_the_formula(lengths: tuple[int, ...], window: int) -> None:
    torch.manual_seed(1)
    pages = torch.randn(16, 4, 6, dtype=torch.float64)
    # no page twice, in no order; 3 pages of 4 tokens a row.
    table = torch.randperm(16)[:9].view(3, 3)
    query, weights = torch.randn(3, 2, 6, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)

    logits = indexer_logits(query, pages, weights, table, torch.tensor(lengths), window)

    for row, length in enumerate(lengths):
        expected = formula(query[row], pages[table[row]].flatten(0, 1), weights[row])
        scored = max(length - window, 0)
        assert logits[row, :scored].tolist() == pytest.approx(expected[:scored], rel=1e-12)
        assert logits[row, scored:].tolist() == [NOT_SCORED] * (12 - scored)


def test_paged_logits_never_read_past_the_length() -> None:
    pages = torch.randn(4, 4, 6)
    pages[1, 3:], pages[2] = float("nan"), float("nan")
    # 8 tokens, window 1: positions 0..6 are scored. The second page ends poisoned, the third entry is no page.
    table = torch.tensor([[0, 1, 2**40]])

    logits = indexer_logits(torch.randn(1, 2, 6), pages, torch.randn(1, 2), table, torch.tensor([8]), 1)

    assert logits[0, :7].isfinite().all()
    assert logits[0, 7:].tolist() == [NOT_SCORED] * 5


@pytest.mark.parametrize("start", [0, 5], ids=["whole", "after-a-cached-prefix"])
def test_prefill_logits_equal_paged_logits(start: int) -> None:
    torch.manual_seed(2)
    context, window = 11, 3
    keys = torch.randn(context, 6, dtype=torch.float64)
    tokens = context - start
    query, weights = torch.randn(tokens, 2, 6, dtype=torch.float64), torch.randn(tokens, 2, dtype=torch.float64)
    lengths = torch.arange(start + 1, context + 1)

    prefill = indexer_logits_prefill(query, keys, weights, lengths, window)

    # one page of the whole context, the same for every query token.
    table = torch.zeros(tokens, 1, dtype=torch.int64)
    paged = indexer_logits(query, keys[None], weights, table, lengths, window)
    torch.testing.assert_close(prefill, paged, rtol=1e-12, atol=1e-12)
