"""Sparse MLA against the formula, written as loops."""

from __future__ import annotations

import math

import pytest
import torch

from pdwatch.kernels import kernel_table, sparse_mla_decode, sparse_mla_prefill

SCALE = 0.3


def formula(
    query: torch.Tensor, latent: torch.Tensor, positions: set[int], sink: torch.Tensor
) -> tuple[list[list[float]], list[float]]:
    """Output and lse of one query token over the rows at `positions`."""
    outputs, lses = [], []
    for head in range(query.shape[0]):
        weights = {place: math.exp(SCALE * float(query[head] @ latent[place])) for place in positions}
        total = sum(weights.values())
        lses.append(math.log(total) if total else -math.inf)
        denominator = total + math.exp(float(sink[head]))
        output = torch.zeros(query.shape[1], dtype=torch.float64)
        for place, weight in weights.items():
            output += latent[place] * (weight / denominator)
        outputs.append(output.tolist())
    return outputs, lses


@pytest.mark.parametrize("lengths", [(1, 2), (9, 4), (12, 8)], ids=["shorter-than-window", "mixed", "page-edges"])
def test_decode_follows_the_formula(lengths: tuple[int, int]) -> None:
    torch.manual_seed(4)
    window, page_size = 3, 4
    pages = torch.randn(9, page_size, 6, dtype=torch.float64)
    table = torch.randperm(9)[:6].view(2, 3)
    query, sink = torch.randn(2, 2, 6, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    # -1 stands between valid positions too.
    older = [[place for place in (0, 2, 5) if place < length - window] for length in lengths]
    selected = torch.tensor([([-1, *places, -1, -1, -1])[:5] for places in older])

    out, lse = sparse_mla_decode(query, pages, table, selected, torch.tensor(lengths), sink, window, SCALE)

    for row, length in enumerate(lengths):
        attended = {*older[row], *range(max(length - window, 0), length)}
        expected, expected_lse = formula(query[row], pages[table[row]].flatten(0, 1), attended, sink)
        torch.testing.assert_close(out[row], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
        assert lse[row].tolist() == pytest.approx(expected_lse, rel=1e-12)


@pytest.mark.parametrize("start", [0, 6], ids=["whole", "after-a-cached-prefix"])
def test_prefill_equals_decode(start: int) -> None:
    torch.manual_seed(5)
    context, window = 13, 3
    latent = torch.randn(context, 6, dtype=torch.float64)
    tokens = context - start
    query, sink = torch.randn(tokens, 2, 6, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    lengths = torch.arange(start + 1, context + 1)
    # every query token selects the even positions beyond its window.
    even = torch.arange(0, context, 2).expand(tokens, -1)
    selected = even.masked_fill(even >= lengths[:, None] - window, -1)

    prefill = sparse_mla_prefill(query, latent, selected, lengths, sink, window, SCALE)

    table = torch.zeros(tokens, 1, dtype=torch.int64)
    decode = sparse_mla_decode(query, latent[None], table, selected, lengths, sink, window, SCALE)
    torch.testing.assert_close(prefill, decode, rtol=1e-12, atol=1e-12)


def test_rows_that_do_not_count_may_hold_anything() -> None:
    pages = torch.full((3, 4, 6), float("nan"))
    pages[2, :2] = torch.randn(2, 6)

    out, lse = sparse_mla_decode(
        torch.randn(1, 2, 6),
        pages,
        torch.tensor([[2]]),
        torch.tensor([[-1]]),
        torch.tensor([2]),
        torch.zeros(2),
        3,
        1.0,
    )

    assert out.isfinite().all()
    assert lse.isfinite().all()


@pytest.mark.parametrize("sink", [0.0, float("-inf"), float("inf")])
def test_a_row_without_positions_is_zero(sink: float) -> None:
    out, lse = sparse_mla_decode(
        torch.randn(1, 2, 6),
        torch.randn(1, 4, 6),
        torch.zeros(1, 1, dtype=torch.int64),
        torch.tensor([[-1, -1]]),
        torch.tensor([0]),
        torch.full((2,), sink),
        3,
        1.0,
    )

    assert out.tolist() == torch.zeros(1, 2, 6).tolist()
    assert lse.tolist() == [[-math.inf, -math.inf]]


@pytest.mark.parametrize(("sink", "share"), [(float("-inf"), 1.0), (0.0, 0.5), (float("inf"), 0.0)])
def test_the_sink_takes_its_share(sink: float, share: float) -> None:
    # one position with logit 0: exp(0) / (exp(0) + exp(sink)).
    latent = torch.zeros(1, 1, 4)
    latent[0, 0, 3] = 1.0
    query = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])

    out, lse = sparse_mla_decode(
        query,
        latent,
        torch.zeros(1, 1, dtype=torch.int64),
        torch.tensor([[-1]]),
        torch.tensor([1]),
        torch.tensor([sink]),
        1,
        1.0,
    )

    assert out[0, 0].tolist() == pytest.approx([0.0, 0.0, 0.0, share])
    assert lse.tolist() == [[0.0]]


def test_an_unknown_table_names_the_known_ones() -> None:
    assert kernel_table("eager").name == "eager"
    with pytest.raises(ValueError, match="kernels `fast` do not exist, use one of: eager"):
        kernel_table("fast")
