"""The float64 reference of sparse MLA over cache rows, against the formula written as loops."""

from __future__ import annotations

import math

import pytest
import torch

from pdwatch.kernels.layout_mla import KvScope, MlaLayout, pack_mla_rows, unpack_mla_rows
from pdwatch.kernels.reference_mla import sparse_mla_reference

SCALE = 0.05


def scope(layout: MlaLayout, indices: list[list[int]], lengths: list[int] | None, page_size: int = 3) -> KvScope:
    pages = pack_mla_rows(torch.randn(4, page_size, layout.dim), layout)
    places = torch.tensor(indices, dtype=torch.int32)[:, None]
    return KvScope(
        pages, layout, page_size, places, None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    )


@pytest.mark.parametrize("layout", list(MlaLayout))
def test_follows_the_formula(layout: MlaLayout) -> None:
    torch.manual_seed(2)
    scopes = [scope(layout, [[3, -1, 7], [2, 5, 0]], [3, 1]), scope(layout, [[11, 1, -1, 4], [-1, -1, 9, 6]], None)]
    query, sink = torch.randn(2, 1, 2, layout.dim).bfloat16(), torch.tensor([0.3, -1.0])
    attended = [([3, 7], [11, 1, 4]), ([2], [9, 6])]

    out, lse = sparse_mla_reference(query, scopes, SCALE, sink)

    pools = [unpack_mla_rows(s.pages, layout, 3).flatten(0, 1) for s in scopes]
    for row, slots in enumerate(attended):
        keys = torch.cat([pool[places] for pool, places in zip(pools, slots, strict=True)])
        for head in range(2):
            weights = [math.exp(SCALE * float(query[row, 0, head].double() @ key)) for key in keys]
            assert lse[row, 0, head].item() == pytest.approx(math.log(sum(weights)), rel=1e-12)
            total = sum(weights) + math.exp(float(sink[head]))
            wanted = sum(weight / total * key[:512] for weight, key in zip(weights, keys, strict=True))
            torch.testing.assert_close(out[row, 0, head], wanted, rtol=1e-12, atol=1e-12)


def test_rows_named_twice_count_twice() -> None:
    torch.manual_seed(3)
    once = scope(MlaLayout.BF16_V4, [[4]], None)
    twice = KvScope(once.pages, once.layout, 3, torch.tensor([[[4, 4]]], dtype=torch.int32))
    query = torch.randn(1, 1, 2, 512)

    out, lse = sparse_mla_reference(query, [twice], SCALE)

    single_out, single_lse = sparse_mla_reference(query, [once], SCALE)
    torch.testing.assert_close(out, single_out)
    torch.testing.assert_close(lse, single_lse + math.log(2))


def test_no_rows_give_zero_and_minus_infinity() -> None:
    torch.manual_seed(4)
    sink = torch.tensor([0.0, math.inf, -math.inf])

    out, lse = sparse_mla_reference(
        torch.randn(2, 1, 3, 512), [scope(MlaLayout.FP8_V4, [[-1, -1], [1, 2]], [2, 0])], SCALE, sink
    )

    assert not out.any() and (lse == -math.inf).all()


def test_sinks_at_infinity() -> None:
    torch.manual_seed(5)
    scopes = [scope(MlaLayout.FP8_V32, [[1, 2]], None)]
    query = torch.randn(1, 1, 2, 576)

    out, lse = sparse_mla_reference(query, scopes, SCALE, torch.tensor([math.inf, -math.inf]))

    plain_out, plain_lse = sparse_mla_reference(query, scopes, SCALE)
    assert not out[0, 0, 0].any() and torch.equal(lse, plain_lse)
    torch.testing.assert_close(out[0, 0, 1], plain_out[0, 0, 1])


def test_reads_no_other_row() -> None:
    torch.manual_seed(6)
    clean = scope(MlaLayout.BF16_V4, [[5, -1, 0]], [2])
    pages = torch.full_like(clean.pages, math.nan)
    pages[1, 2] = clean.pages[1, 2]
    query = torch.randn(1, 1, 2, 512)

    out, lse = sparse_mla_reference(query, [KvScope(pages, clean.layout, 3, clean.indices, clean.lengths)], SCALE)

    wanted = sparse_mla_reference(query, [clean], SCALE)
    assert torch.equal(out, wanted[0]) and torch.equal(lse, wanted[1])
