"""Sparse MLA in Triton on a GPU: numbers, bitwise batch invariance, determinism, replay, poison and far pages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_mla import KvScope, MlaLayout, pack_mla_rows
from pdwatch.kernels.reference_mla import sparse_mla_reference
from pdwatch.kernels.triton_mla import sparse_mla, sparse_mla_workspace

SCALE = 0.06
# bfloat16 weights: 2^-9 of each term, random; the output is rounded once more.
TOLERANCE = 8e-3


def scope(layout: MlaLayout, batch: int, tokens: int, count: int, page_size: int, seed: int, ragged: bool = True):
    generator = torch.Generator().manual_seed(seed)
    pages = 4 * count // page_size + 3
    rows = torch.randn(pages, page_size, layout.dim, generator=generator)
    indices = torch.randint(-pages * page_size // 8, pages * page_size, (batch, tokens, count), generator=generator)
    lengths = torch.randint(0, count + 1, (batch,), generator=generator).int().cuda() if ragged else None
    pool = pack_mla_rows(rows, layout).cuda()
    return KvScope(pool, layout, page_size, indices.clamp(min=-1).int().cuda(), lengths)


def problem(
    layout: MlaLayout, heads: int, batch: int, tokens: int = 1, counts=(128, 512), pages=(256, 64), seed: int = 0
):
    torch.manual_seed(seed)
    query = torch.randn(batch, tokens, heads, layout.dim, device="cuda").bfloat16()
    scopes = [scope(layout, batch, tokens, *sizes, i) for i, sizes in enumerate(zip(counts, pages, strict=True))]
    return query, scopes, torch.randn(heads, device="cuda")


def assert_close(actual, expected) -> None:
    out, lse = actual
    wanted, wanted_lse = expected
    error = (out.double() - wanted).norm(dim=-1)
    assert (error <= TOLERANCE * wanted.norm(dim=-1).clamp(min=1e-2)).all()
    finite = wanted_lse > float("-inf")
    # scores are exact but for float32 sums of at most 576 products.
    torch.testing.assert_close(lse.double()[finite], wanted_lse[finite], rtol=1e-5, atol=1e-4)
    assert (lse[~finite] == float("-inf")).all() and (out[~finite] == 0).all()


@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("heads", [8, 20, 64, 128])
@pytest.mark.parametrize("tokens", [1, 3])
def test_follows_the_reference(layout: MlaLayout, heads: int, tokens: int) -> None:
    query, scopes, sink = problem(layout, heads, 5, tokens)
    sink[0], sink[1] = float("inf"), float("-inf")
    assert_close(sparse_mla(query, scopes, SCALE, sink), sparse_mla_reference(query, scopes, SCALE, sink))


@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("page_size", [1, 2, 53, 61, 64, 69, 256, 576])
def test_page_sizes(layout: MlaLayout, page_size: int) -> None:
    query, scopes, _ = problem(layout, 64, 3, counts=(200,), pages=(page_size,))
    assert_close(sparse_mla(query, scopes, SCALE), sparse_mla_reference(query, scopes, SCALE))


@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("heads", [8, 64])
@pytest.mark.parametrize("counts", [(128, 512), (64, 1152)])
def test_a_row_does_not_depend_on_its_batch(layout: MlaLayout, heads: int, counts: tuple[int, int]) -> None:
    query, scopes, sink = problem(layout, heads, 300, counts=counts)
    whole_out, whole_lse = sparse_mla(query, scopes, SCALE, sink)
    for start, size in (
        (0, 1),
        (7, 1),
        (299, 1),
        (3, 2),
        (11, 13),
        (20, 16),
        (40, 64),
        (100, 66),
        (100, 67),
        (50, 133),
    ):
        part = slice(start, start + size)
        some = [replace(s, indices=s.indices[part], lengths=s.lengths[part]) for s in scopes]
        out, lse = sparse_mla(query[part], some, SCALE, sink)
        assert torch.equal(out, whole_out[part]) and torch.equal(lse, whole_lse[part]), (start, size)


@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("batch", [4, 24, 150])
def test_queries_without_rows_may_hold_anything(layout: MlaLayout, batch: int) -> None:
    query, scopes, sink = problem(layout, 64, batch)
    for s in scopes:
        # one without an index, one without lengths, one with a single index at the end.
        s.indices[:3] = -1
        s.lengths[:3] = torch.tensor([s.indices.shape[-1], 0, s.indices.shape[-1]], device="cuda")
    scopes[1].indices[2, :, -1] = 1
    expected = sparse_mla_reference(query, scopes, SCALE, sink)
    query[:2] = float("nan")
    workspace = sparse_mla_workspace(batch, 1, 64, (128, 512), "cuda")
    workspace.partial.fill_(float("nan"))
    workspace.stats.fill_(float("nan"))
    assert_close(sparse_mla(query, scopes, SCALE, sink, workspace=workspace), expected)


@pytest.mark.parametrize("batch", [1, 24, 150])
def test_repeats_are_bitwise_equal(batch: int) -> None:
    query, scopes, sink = problem(MlaLayout.FP8_V4, 64, batch)
    first_out, first_lse = sparse_mla(query, scopes, SCALE, sink)
    for _ in range(100):
        out, lse = sparse_mla(query, scopes, SCALE, sink)
        assert torch.equal(out, first_out) and torch.equal(lse, first_lse)


@pytest.mark.parametrize("layout", [MlaLayout.FP8_V4, MlaLayout.FP8_V32, MlaLayout.BF16_V4])
@pytest.mark.parametrize("batch", [2, 24, 150])
def test_replays_follow_lengths_and_indices(layout: MlaLayout, batch: int) -> None:
    query, scopes, sink = problem(layout, 64, batch)
    for s in scopes:
        s.lengths.fill_(1)
    workspace = sparse_mla_workspace(batch, 1, 64, (128, 512), "cuda")
    out, lse = sparse_mla(query, scopes, SCALE, sink, workspace=workspace)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_mla(query, scopes, SCALE, sink, out=out, lse=lse, workspace=workspace)
    for lengths in ((0, 0), (1, 0), (0, 1), (63, 64), (65, 127), (128, 129), (128, 511), (127, 512), (3, 5)):
        for s, length in zip(scopes, lengths, strict=True):
            s.lengths.fill_(length)
            s.indices.copy_(s.indices.flip(0))
        out.fill_(float("nan"))
        lse.fill_(float("nan"))
        workspace.partial.fill_(float("nan"))
        workspace.stats.fill_(float("nan"))
        graph.replay()
        assert_close((out, lse), sparse_mla_reference(query, scopes, SCALE, sink))


@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("heads", [8, 64])
def test_reads_no_other_row(layout: MlaLayout, heads: int) -> None:
    query, scopes, sink = problem(layout, heads, 9, counts=(100, 300), pages=(61, 64))
    expected = sparse_mla_reference(query, scopes, SCALE, sink)
    poisoned = []
    for s in scopes:
        places = torch.arange(s.indices.shape[-1], device="cuda")
        used = s.indices[(s.indices >= 0) & (places < s.lengths[:, None, None])].unique()
        # 0xff: NaN of e4m3, of UE8M0, of bfloat16 and of float32.
        pool = torch.full_like(s.pages, 0xFF if layout.is_fp8 else float("nan"))
        page, offset = used // s.page_size, used % s.page_size
        if layout is MlaLayout.FP8_V4:
            for start, size in ((offset * 576, 576), (s.page_size * 576 + offset * 8, 8)):
                at = (page[:, None], start[:, None] + torch.arange(size, device="cuda"))
                pool[at] = s.pages[at]
        elif layout is MlaLayout.FP8_V32:
            at = (page[:, None], offset[:, None] * 656 + torch.arange(656, device="cuda"))
            pool[at] = s.pages[at]
        else:
            pool[page, offset] = s.pages[page, offset]
        indices = s.indices.clone()
        indices[places.expand_as(indices) >= s.lengths[:, None, None]] = 2**31 - 1
        poisoned.append(replace(s, pages=pool, indices=indices))
    assert_close(sparse_mla(query, poisoned, SCALE, sink), expected)


def test_pages_beyond_two_gigabytes() -> None:
    layout, page_size = MlaLayout.FP8_V4, 64
    page = layout.page_bytes(page_size)
    stride = 576 * 1_900_000
    raw = torch.zeros(stride * 4 + page, dtype=torch.uint8, device="cuda")
    pool = raw.as_strided((5, page), (stride, 1))
    query, (near,), sink = problem(layout, 64, 3, counts=(160,), pages=(page_size,))
    pool.copy_(near.pages[:5])
    indices = near.indices % (5 * page_size)
    far = replace(near, pages=pool, indices=indices)
    assert stride * 4 > 2**32
    wanted = sparse_mla(query, [replace(near, pages=near.pages[:5], indices=indices)], SCALE, sink)
    assert all(map(torch.equal, sparse_mla(query, [far], SCALE, sink), wanted))


def test_large_rows_and_scores_stay_finite() -> None:
    query, scopes, sink = problem(MlaLayout.FP8_V4, 64, 4)
    query = query * 200
    assert_close(sparse_mla(query, scopes, SCALE, sink), sparse_mla_reference(query, scopes, SCALE, sink))


def test_the_workspace_of_a_large_batch_serves_smaller_ones() -> None:
    workspace = sparse_mla_workspace(300, 1, 64, (128, 512), "cuda")
    for batch in (1, 3, 13, 14, 26, 27, 66, 67, 300):
        query, scopes, sink = problem(MlaLayout.FP8_V4, 64, batch)
        sparse_mla(query, scopes, SCALE, sink, workspace=workspace)
    small = sparse_mla_workspace(1, 1, 64, (64,), "cuda")
    with pytest.raises(KernelArguments, match="workspace holds"):
        sparse_mla(query, scopes, SCALE, sink, workspace=small)
