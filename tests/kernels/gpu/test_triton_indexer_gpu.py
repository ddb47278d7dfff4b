"""Paged indexer logits on a GPU: numbers, invariance, determinism, replays with other lengths, poison, 64 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from pdwatch.kernels.layout_indexer import IndexKeyLayout, pack_index_keys, page_bytes
from pdwatch.kernels.reference_indexer import (
    logits_tolerance,
    paged_indexer_logits_reference,
    row_lengths,
)
from pdwatch.kernels.triton_indexer import indexer_workspace, paged_indexer_logits
from pdwatch.kernels.triton_topk import indexer_topk

PAGE = 64
LAYOUTS = pytest.mark.parametrize("layout", IndexKeyLayout)
NAN = float("nan")


class Case:
    """Random inputs; the pool has more pages than the rows use, and they use them in random order."""

    def __init__(
        self, layout: IndexKeyLayout, lengths: list[int], *, width: int = 40, tokens: int = 1, heads: int = 64
    ) -> None:
        torch.manual_seed(7)
        batch = len(lengths)
        self.layout, self.width = layout, width
        self.pages = pack_index_keys(torch.randn(batch * width + 3, PAGE, 128, device="cuda"), layout)
        self.query = torch.randn(batch, tokens, heads, 128, device="cuda").to(layout.query_dtype)
        self.weights = torch.randn(batch, tokens, heads, device="cuda")
        order = torch.randperm(batch * width + 3, device="cuda").int()
        self.table = order[: batch * width].view(batch, width).contiguous()
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.query, self.pages, self.weights, self.table, self.lengths

    def run(self, **named: Any) -> torch.Tensor:
        return paged_indexer_logits(*self.arguments(), layout=self.layout, page_size=PAGE, **named)

    def reference(self) -> torch.Tensor:
        return paged_indexer_logits_reference(*self.arguments(), layout=self.layout, page_size=PAGE)

    def assert_right(self, logits: torch.Tensor) -> None:
        reference = self.reference()
        scored = ~reference.isnan()
        bound = logits_tolerance(*self.arguments(), layout=self.layout, page_size=PAGE)
        assert ((logits - reference).abs() <= bound)[scored].all()


def scored_rows(logits: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    return [row[:length].clone() for row, length in zip(logits, lengths.flatten().tolist(), strict=True)]


@LAYOUTS
@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_numbers(layout: IndexKeyLayout, tokens: int, heads: int) -> None:
    case = Case(layout, [0, 1, 63, 64, 65, 2560, 700, 128, 129], tokens=tokens, heads=heads)
    if tokens > 1:
        shorter = torch.arange(tokens - 1, -1, -1, device="cuda", dtype=torch.int32)
        case.lengths = (case.lengths[:, None] - shorter).clamp(min=0)

    case.assert_right(case.run())


@LAYOUTS
def test_a_row_does_not_depend_on_its_batch(layout: IndexKeyLayout) -> None:
    # alone, a long row takes the loop that loads the query once; among many short ones, the other.
    lengths = [2560] + [200, 0, 77, 128] * 63 + [2500, 65, 1]
    case = Case(layout, lengths)
    together = case.run()

    for row in [0, 1, 2, 3, 100, 253, 254, 255]:
        alone = Case.__new__(Case)
        alone.layout, alone.pages = case.layout, case.pages
        alone.query, alone.weights = case.query[row : row + 1], case.weights[row : row + 1]
        alone.table, alone.lengths = case.table[row : row + 1], case.lengths[row : row + 1]
        length = lengths[row]
        assert torch.equal(alone.run()[0, :length], together[row, :length]), row


@LAYOUTS
def test_a_hundred_repeats_are_bitwise_equal(layout: IndexKeyLayout) -> None:
    case = Case(layout, [2560, 31, 0, 1200] * 8)
    first = scored_rows(case.run(), case.lengths)

    for _ in range(100):
        for one, other in zip(first, scored_rows(case.run(), case.lengths), strict=True):
            assert torch.equal(one, other)


@LAYOUTS
def test_replays_with_other_lengths_equal_eager(layout: IndexKeyLayout) -> None:
    case = Case(layout, [1, 1, 1, 1])
    workspace = indexer_workspace(4, 1, case.width * PAGE, "cuda")
    chosen = torch.empty(4, 64, dtype=torch.int32, device="cuda")
    named: dict[str, Any] = {"layout": layout, "page_size": PAGE}
    indexer_topk(*case.arguments(), 64, **named, out=chosen, workspace=workspace)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        indexer_topk(*case.arguments(), 64, **named, out=chosen, workspace=workspace)
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert allocated == 0

    edges = [0, 1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 2047, 2048, 2053, 2560, 7, 0]
    for step in range(len(edges)):
        case.lengths.copy_(torch.tensor([edges[(step + 5 * row) % len(edges)] for row in range(4)]))
        case.table.copy_(case.table[:, torch.randperm(case.width, device="cuda")])
        workspace.logits.fill_(NAN)
        workspace.maxima.fill_(0x7FFFFFFF)
        chosen.fill_(-77)
        graph.replay()
        eager = case.run()
        for row, length in enumerate(case.lengths.tolist()):
            assert torch.equal(workspace.logits[row, :length], eager[row, :length])
        assert torch.equal(chosen, indexer_topk(*case.arguments(), 64, **named))


@LAYOUTS
def test_nothing_that_does_not_exist_is_used(layout: IndexKeyLayout) -> None:
    case = Case(layout, [100, 0, 64, 1, 2559])
    clean = scored_rows(case.run(), case.lengths)
    out = torch.full((5, case.width * PAGE), NAN, device="cuda")
    used = torch.zeros(len(case.pages), PAGE, dtype=torch.bool, device="cuda")
    for row, length in enumerate(case.lengths.tolist()):
        for place in range(0, length, PAGE):
            used[case.table[row, place // PAGE].long(), : min(PAGE, length - place)] = True
        # page ids behind the length point far outside of the pool.
        case.table[row, (length + PAGE - 1) // PAGE :] = 0x7FFFFFFF if row % 2 else -1
    if layout is IndexKeyLayout.FP8:
        values = case.pages[:, : PAGE * 128].view(-1, PAGE, 128)
        values[~used] = 0x7F
        scales = case.pages[:, PAGE * 128 :].view(-1, PAGE, 4)
        scales[~used] = 0xFF
    else:
        case.pages[~used] = NAN

    poisoned = scored_rows(case.run(out=out), case.lengths)

    for one, other in zip(clean, poisoned, strict=True):
        assert torch.equal(one, other)
    for row, length in enumerate(case.lengths.tolist()):
        assert out[row, length:].isnan().all(), "written at or past the length"


@LAYOUTS
def test_pages_far_apart_need_64_bits(layout: IndexKeyLayout) -> None:
    case = Case(layout, [256, 130], width=4)
    expected = scored_rows(case.run(), case.lengths)
    element = case.pages.element_size()
    stride = (2**31 // (len(case.pages) - 1) // element // 128 + 1) * 128
    pool = torch.empty(stride * len(case.pages), dtype=case.pages.dtype, device="cuda")
    flat = case.pages.flatten(1)
    spread = pool.as_strided(flat.shape, (stride, 1))
    spread.copy_(flat)
    case.pages = spread if layout is IndexKeyLayout.FP8 else spread.unflatten(1, (PAGE, 128))

    for one, other in zip(expected, scored_rows(case.run(), case.lengths), strict=True):
        assert torch.equal(one, other)


def test_logits_beyond_two_to_the_31_elements() -> None:
    rows, keys = 5, 2**29
    case = Case(IndexKeyLayout.FP8, [300] * rows, width=8)
    expected = case.run()
    out = torch.empty(rows * keys, device="cuda").view(rows, keys)
    logits = case.run(out=out)

    assert logits.stride(0) * (rows - 1) >= 2**31
    assert torch.equal(logits[:, :300], expected[:, :300])


@pytest.mark.parametrize("page", [16, 32, 128, 256])
def test_other_page_sizes(page: int) -> None:
    torch.manual_seed(1)
    keys = torch.randn(2048 // page, page, 128, device="cuda")
    pages = pack_index_keys(keys, IndexKeyLayout.FP8)
    query = torch.randn(1, 1, 64, 128, device="cuda").to(torch.float8_e4m3fn)
    weights = torch.randn(1, 1, 64, device="cuda")
    table = torch.randperm(2048 // page, device="cuda").int()[None]
    lengths = torch.tensor([1999], dtype=torch.int32, device="cuda")
    arguments = (query, pages, weights, table, lengths)
    named: dict[str, Any] = {"layout": IndexKeyLayout.FP8, "page_size": page}
    assert pages.shape[1] == page_bytes(IndexKeyLayout.FP8, page)

    logits = paged_indexer_logits(*arguments, **named)

    error = (logits - paged_indexer_logits_reference(*arguments, **named)).abs()
    assert (error <= logits_tolerance(*arguments, **named))[:, : int(row_lengths(lengths, 1, 1))].all()
