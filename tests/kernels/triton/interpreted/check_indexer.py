"""The Triton indexer and top-k on the CPU, interpreted: run by test_interpreted_indexer.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pdwatch import kernels
from pdwatch.kernels import triton_table_indexer as table_kernels
from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_indexer import IndexKeyLayout, pack_index_keys
from pdwatch.kernels.reference_indexer import (
    logits_tolerance,
    paged_indexer_logits_reference,
    row_lengths,
    topk_reference,
)
from pdwatch.kernels.triton_indexer import indexer_workspace, paged_indexer_logits
from pdwatch.kernels.triton_topk import indexer_topk, topk_positions

FP8, BF16 = IndexKeyLayout.FP8, IndexKeyLayout.BF16
NAN, INFINITE = float("nan"), float("inf")


class Case:
    def __init__(
        self, layout: IndexKeyLayout, lengths: list[int], *, page: int = 64, tokens: int = 1, heads: int = 64
    ) -> None:
        torch.manual_seed(5)
        batch, width = len(lengths), (max(lengths) + page - 1) // page + 1
        self.layout, self.page, self.width = layout, page, width
        self.pages = pack_index_keys(torch.randn(batch * width + 2, page, 128), layout)
        self.query = torch.randn(batch, tokens, heads, 128).to(layout.query_dtype)
        self.weights = torch.randn(batch, tokens, heads)
        self.table = torch.randperm(batch * width + 2)[: batch * width].view(batch, width).int()
        self.lengths = torch.tensor(lengths, dtype=torch.int32)

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.query, self.pages, self.weights, self.table, self.lengths

    @property
    def named(self) -> dict[str, Any]:
        return {"layout": self.layout, "page_size": self.page}

    def run(self, **extra: Any) -> Tensor:
        return paged_indexer_logits(*self.arguments, layout=self.layout, page_size=self.page, **extra)

    def scored(self, logits: Tensor) -> list[Tensor]:
        lengths = row_lengths(self.lengths, *self.query.shape[:2]).flatten().tolist()
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

    def assert_right(self, logits: Tensor) -> None:
        error = (logits - paged_indexer_logits_reference(*self.arguments, **self.named)).abs()
        bound = logits_tolerance(*self.arguments, **self.named)
        for one, most in zip(self.scored(error), self.scored(bound), strict=True):
            assert (one <= most).all()


@pytest.mark.parametrize("layout", IndexKeyLayout)
@pytest.mark.parametrize(("tokens", "heads"), [(1, 64), (2, 32), (3, 32), (4, 64)])
def test_logits(layout: IndexKeyLayout, tokens: int, heads: int) -> None:
    case = Case(layout, [300, 0, 70, 64, 1], tokens=tokens, heads=heads)
    if tokens > 1:
        case.lengths = (case.lengths[:, None] - torch.arange(tokens - 1, -1, -1, dtype=torch.int32)).clamp(min=0)
    out = torch.full((5 * tokens, case.width * 64), NAN)

    case.run(out=out)

    case.assert_right(out)
    lengths = row_lengths(case.lengths, 5, tokens).flatten()
    assert out[torch.arange(out.shape[1]) >= lengths[:, None]].isnan().all(), "written at or past a length"


@pytest.mark.parametrize("page", [16, 32, 128, 256])
def test_logits_of_other_page_sizes(page: int) -> None:
    case = Case(FP8, [700, 129], page=page)

    case.assert_right(case.run())


def test_lengths_of_a_row_hold_for_all_its_query_tokens() -> None:
    case = Case(FP8, [100, 33], tokens=2, heads=32)

    case.assert_right(case.run())


def test_long_rows_take_the_other_loop_and_give_the_same_bits() -> None:
    # with 5 programs, 4000 keys are 6 tiles and more for each; beside empty rows they are too few on average.
    case = Case(FP8, [4100, 0, 0, 0, 0, 0, 0, 0, 0], heads=32)
    together = case.run()
    case.assert_right(together)
    row = (case.query[:1], case.pages, case.weights[:1], case.table[:1], case.lengths[:1])
    alone = paged_indexer_logits(*row, **case.named)

    assert torch.equal(alone[0, :4100], together[0, :4100])


@pytest.mark.parametrize("layout", IndexKeyLayout)
def test_nothing_that_does_not_exist_is_used(layout: IndexKeyLayout) -> None:
    case = Case(layout, [100, 0, 64, 1])
    clean = [row.clone() for row in case.scored(case.run())]
    used = torch.zeros(len(case.pages), 64, dtype=torch.bool)
    for row, length in enumerate(case.lengths.tolist()):
        for place in range(0, length, 64):
            used[case.table[row, place // 64].long(), : min(64, length - place)] = True
        case.table[row, (length + 63) // 64 :] = 0x7FFFFFFF
    if layout is FP8:
        case.pages[:, :8192].view(-1, 64, 128)[~used] = 0x7F
        case.pages[:, 8192:].view(-1, 64, 4)[~used] = 0xFF
    else:
        case.pages[~used] = NAN

    for one, other in zip(clean, case.scored(case.run()), strict=True):
        assert torch.equal(one, other)


def test_pages_of_a_bigger_pool_and_logits_of_a_wider_buffer() -> None:
    case = Case(FP8, [130, 77])
    expected = case.run()
    pool = torch.full((len(case.pages), 9216), 255, dtype=torch.uint8)
    pool[:, :8448] = case.pages
    case.pages = pool[:, :8448]
    wide = torch.zeros(2, 5000)

    logits = case.run(out=wide[:, 100:])

    assert all(torch.equal(one, other) for one, other in zip(case.scored(logits), case.scored(expected), strict=True))
    assert not wide[:, :100].any()


@pytest.mark.parametrize("count", [1, 16, 100, 512])
def test_logits_and_topk_together(count: int) -> None:
    case = Case(FP8, [900, 0, 70, 513], tokens=2, heads=32)
    workspace = indexer_workspace(4, 2, case.width * 64, "cpu")
    out = torch.full((8, count), -77, dtype=torch.int32)

    chosen = indexer_topk(*case.arguments, count, **case.named, out=out, workspace=workspace)

    lengths = row_lengths(case.lengths, 4, 2)
    assert chosen is out
    assert torch.equal(chosen, topk_reference(workspace.logits, lengths, count))
    slots = indexer_topk(*case.arguments, count, **case.named, slots=True)
    for row in range(8):
        known = chosen[row][chosen[row] >= 0].long()
        expected = case.table[row // 2][known // 64] * 64 + known % 64
        assert torch.equal(slots[row, : len(known)], expected.int()) and (slots[row, len(known) :] == -1).all()


def values(kind: str, rows: int, width: int) -> Tensor:
    torch.manual_seed(3)
    plain, dice = torch.randn(rows, width), torch.rand(rows, width)
    special = torch.where(dice < 0.4, INFINITE, torch.where(dice < 0.9, plain, -INFINITE))
    return {
        "plain": plain,
        "dead": (plain - 1.5).relu(),
        "signed-zeros": torch.where(plain > 0, 0.0, -0.0),
        "few": plain.round(),
        "equal": torch.full_like(plain, -3.0),
        "sorted": plain.sort().values,
        "denormal": (plain * 4).round() * 1e-45,
        "huge": plain * 1e38,
        "special": torch.where(dice < 0.2, NAN, special),
        "nan-and-minus-infinity": torch.where(plain > 1.5, plain, torch.where(plain > 0, NAN, -INFINITE)),
        "nan": torch.full_like(plain, NAN),
    }[kind]


KINDS = (
    "plain", "dead", "signed-zeros", "few", "equal", "sorted", "denormal", "huge", "special", "nan-and-minus-infinity",
    "nan",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "counts"), [(700, (1, 7, 64, 500, 512)), (3000, (100,)), (20000, (512,))])
def test_topk_equals_the_stable_sort(kind: str, width: int, counts: tuple[int, ...]) -> None:
    logits = values(kind, 5, width)
    for count in counts:
        lengths = torch.tensor([width, width // 2 + 3, count, min(count + 1, width), 0], dtype=torch.int32)
        beyond = torch.arange(width) >= lengths[:, None]

        chosen = topk_positions(logits.masked_fill(beyond, INFINITE), lengths, count)

        assert torch.equal(chosen, topk_reference(logits, lengths, count)), count


@pytest.mark.parametrize("kind", ["plain", "few"])
def test_topk_of_many_in_several_tiles(kind: str) -> None:
    logits = values(kind, 1, 36000)
    lengths = torch.tensor([36000], dtype=torch.int32)

    assert torch.equal(topk_positions(logits, lengths, 2048), topk_reference(logits, lengths, 2048))


def test_the_embedded_engines_functions() -> None:
    torch.manual_seed(9)
    query, weights = torch.randn(5, 4, 32), torch.randn(5, 4)
    pages, table = torch.randn(9, 16, 32), torch.randint(0, 9, (5, 7), dtype=torch.int32)
    lengths = torch.tensor([112, 0, 70, 65, 30])
    table[2, 5:] = 1 << 30

    paged = table_kernels.indexer_logits(query, pages, weights, table, lengths, 8)
    whole = table_kernels.indexer_logits_prefill(query, pages[0], weights, lengths.clamp(max=16), 3)

    torch.testing.assert_close(paged, kernels.indexer_logits(query, pages, weights, table, lengths, 8))
    eager = kernels.indexer_logits_prefill(query, pages[0], weights, lengths.clamp(max=16), 3)
    torch.testing.assert_close(whole, eager)
    for count in (3, 64, 200):
        assert torch.equal(table_kernels.select_topk(paged, count), kernels.select_topk(paged, count))
    holes = torch.tensor([[-INFINITE, 1.0, -0.0, 0.0, 5.0, -INFINITE]])
    assert table_kernels.select_topk(holes, 3).tolist() == [[1, 2, 4]]
    assert table_kernels.select_topk(holes, 6).tolist() == [[1, 2, 3, 4, -1, -1]]
    assert table_kernels.select_topk(holes[:, :0], 2).tolist() == [[-1, -1]]
    with pytest.raises(KernelArguments, match=r"query are torch\.float64"):
        table_kernels.indexer_logits(query.double(), pages, weights, table, lengths, 8)


Change = Callable[[Case], None]
REFUSED: dict[str, tuple[Change, str]] = {
    "heads": (lambda c: setattr(c, "query", c.query[:, :, :48]), "give .* 32 or 64"),
    "query-dtype": (lambda c: setattr(c, "query", c.query.float()), "need torch.float8_e4m3fn"),
    "query-stride": (lambda c: setattr(c, "query", c.query.mT.contiguous().mT), "heads contiguous"),
    "page-dtype": (lambda c: setattr(c, "pages", c.pages.view(torch.int8)), "needs torch.uint8"),
    "page-bytes": (lambda c: setattr(c, "pages", c.pages[:, :8000]), "at least 8448"),
    "page-alignment": (lambda c: setattr(c, "pages", torch.zeros(9, 8450, dtype=torch.uint8)), "multiples of 16"),
    "page-size": (lambda c: setattr(c, "page", 48), "power of two"),
    "weights": (lambda c: setattr(c, "weights", c.weights.half()), "give float32"),
    "table-dtype": (lambda c: setattr(c, "table", c.table.long()), "torch.int32"),
    "table-rows": (lambda c: setattr(c, "table", c.table[:1]), r"give \[2, width\]"),
    "lengths-dtype": (lambda c: setattr(c, "lengths", c.lengths.long()), "torch.int32"),
    "lengths-shape": (lambda c: setattr(c, "lengths", c.lengths[:1]), r"give \[2\]"),
    "device": (lambda c: setattr(c, "weights", c.weights.to("meta")), "on meta"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_arguments_are_refused(change: Change, message: str) -> None:
    case = Case(FP8, [10, 20])
    change(case)

    with pytest.raises(KernelArguments, match=message):
        case.run()


def test_wrong_buffers_are_refused() -> None:
    case = Case(FP8, [100, 20])
    logits, lengths = torch.zeros(2, 900), torch.tensor([900, 3], dtype=torch.int32)
    for call, message in (
        (lambda: case.run(out=torch.zeros(2, 100)), r"at least \[2, 192\]"),
        (lambda: case.run(out=torch.zeros(2, 192, dtype=torch.float64)), "give torch.float32"),
        (lambda: case.run(workspace=indexer_workspace(1, 1, 192, "cpu")), "at least"),
        (lambda: topk_positions(logits.double(), lengths, 5), "give float32"),
        (lambda: topk_positions(logits.T, lengths, 5), "adjacent"),
        (lambda: topk_positions(logits, lengths[:1], 5), "give 2 contiguous"),
        (lambda: topk_positions(logits, lengths, 0), "give 1 to 2048"),
        (lambda: topk_positions(logits, lengths, 4096), "give 1 to 2048"),
        (lambda: topk_positions(logits, lengths, 5, out=torch.zeros(2, 5)), "give int32"),
        (lambda: topk_positions(logits, lengths, 5, workspace=indexer_workspace(2, 1, 64, "cpu")), "2 rows of 900"),
        (lambda: topk_positions(torch.zeros(1, 1).expand(1, 2**19 + 1), lengths[:1], 5), "adjacent|at most"),
    ):
        with pytest.raises(KernelArguments, match=message):
            call()


def test_nothing_to_do() -> None:
    none = torch.zeros(0, 700)

    assert topk_positions(none, torch.zeros(0, dtype=torch.int32), 5).shape == (0, 5)
    case = Case(FP8, [0, 0])
    assert (indexer_topk(*case.arguments, 5, **case.named) == -1).all()
