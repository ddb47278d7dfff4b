"""The float64 references of the indexer against their formulas written as loops."""

from __future__ import annotations

from typing import Any

import torch

from pdwatch.kernels import select_topk
from pdwatch.kernels.layout_indexer import IndexKeyLayout, pack_index_keys, unpack_index_keys
from pdwatch.kernels.reference_indexer import logits_tolerance, paged_indexer_logits_reference, topk_reference

FP8 = IndexKeyLayout.FP8
NAN, INFINITE = float("nan"), float("inf")


def test_logits_equal_the_formula_key_by_key() -> None:
    torch.manual_seed(1)
    pages = pack_index_keys(torch.randn(5, 4, 128), FP8)
    query = torch.randn(2, 2, 3, 128).to(torch.float8_e4m3fn)
    weights = torch.randn(2, 2, 3)
    table = torch.tensor([[3, 1, -9], [0, 4, 2]], dtype=torch.int32)
    lengths = torch.tensor([[6, 7], [0, 11]], dtype=torch.int32)
    arguments = (query, pages, weights, table, lengths)
    named: dict[str, Any] = {"layout": FP8, "page_size": 4}

    logits = paged_indexer_logits_reference(*arguments, **named).view(2, 2, 12)

    values, scales = unpack_index_keys(pages, FP8, 4)
    for row in range(2):
        for token in range(2):
            for position in range(12):
                if position >= lengths[row, token]:
                    assert logits[row, token, position].isnan()
                    continue
                page, offset = int(table[row, position // 4]), position % 4
                expected = 0.0
                for head in range(3):
                    product = float(query[row, token, head].double() @ values[page, offset])
                    expected += float(weights[row, token, head]) * max(product, 0.0)
                expected *= float(scales[page, offset])
                torch.testing.assert_close(float(logits[row, token, position]), expected, rtol=1e-12, atol=1e-12)
    assert (logits_tolerance(*arguments, **named).view(2, 2, 12)[~logits.isnan()] > 0).all()


def test_topk_agrees_with_the_eager_kernel_of_the_engine() -> None:
    torch.manual_seed(2)
    logits = torch.randint(-3, 4, (20, 300)).float() / 2
    lengths = torch.randint(0, 301, (20,))
    masked = logits.masked_fill(torch.arange(300) >= lengths[:, None], -INFINITE)

    assert torch.equal(topk_reference(logits, lengths, 64), select_topk(masked, 64).int())


def test_topk_puts_nan_behind_minus_infinity_and_never_looks_past_the_length() -> None:
    row = [NAN, -INFINITE, 2.0, NAN, -0.0, 0.0, INFINITE]

    def chosen(length: int, count: int) -> list[int]:
        return topk_reference(torch.tensor([row]), torch.tensor([length]), count)[0].tolist()

    assert chosen(6, 1) == [2]
    assert chosen(6, 2) == [2, 4]
    assert chosen(6, 4) == [1, 2, 4, 5]
    assert chosen(6, 5) == [0, 1, 2, 4, 5]
    assert chosen(3, 4) == [0, 1, 2, -1]
    assert chosen(0, 2) == [-1, -1]
