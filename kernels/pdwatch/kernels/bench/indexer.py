"""Paged indexer logits, and the choice of positions behind them: inputs of a case, and who can compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pdwatch.kernels.bench.cases import CHOSEN, INDEX_HEADS, INDEX_PAGE, Family, IndexerCase
from pdwatch.kernels.bench.eager import eager_indexer_topk
from pdwatch.kernels.bench.errors import Unsuitable
from pdwatch.kernels.bench.problem import EAGER, OURS, rotation
from pdwatch.kernels.bench.timing import Call
from pdwatch.kernels.layout_indexer import INDEX_DIM, IndexKeyLayout, pack_index_keys, page_bytes

DEEP_GEMM = "DeepGEMM"
# eager PyTorch scores the whole table of all rows at once
_MOST_EAGER_KEYS = 1 << 24
_PAGES_PACKED_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class IndexerInputs:
    """Arguments of one call."""

    query: Tensor
    key_pages: Tensor
    weights: Tensor
    block_table: Tensor
    lengths: Tensor


class IndexerProblem:
    """A Problem (see `problem.py`): keys in pages of their own for each row, in random order."""

    def __init__(self, case: IndexerCase, device: str, sets: int | None = None) -> None:
        self.case = case
        self.device = device
        self.sets = [self._inputs() for _ in range(sets or rotation(case.least_bytes))]

    @property
    def implementations(self) -> Mapping[str, Callable[[], list[Call]]]:
        if self.case.family is Family.INDEXER_LOGITS:
            return {OURS: self._our_logits, DEEP_GEMM: self._deep_gemm}
        return {OURS: self._our_choice, EAGER: self._eager}

    def difference(self, ours: Tensor, theirs: Tensor) -> float:
        """Logits: the largest difference over the largest logit. Positions: the share that only one of both chose."""
        if self.case.family is Family.INDEXER_LOGITS:
            left, right = ours[:, : self.case.keys], theirs[:, : self.case.keys]
            return float((left - right).abs().max() / right.abs().max())
        width = self.case.maximum + 1
        chosen = [
            torch.zeros(self.case.batch, width, dtype=torch.bool, device=each.device).scatter_(
                1, torch.where(each < 0, self.case.maximum, each.long()), True
            )
            for each in (ours, theirs)
        ]
        return float((chosen[0] ^ chosen[1]).sum() / (2 * ours.numel()))

    def _inputs(self) -> IndexerInputs:
        case, device = self.case, self.device
        pages = -(-case.keys // INDEX_PAGE)
        table = torch.zeros(case.batch, -(-case.maximum // INDEX_PAGE), dtype=torch.int32, device=device)
        table[:, :pages] = torch.randperm(case.batch * pages, device=device).view(case.batch, pages)
        return IndexerInputs(
            query=torch.randn(case.batch, 1, INDEX_HEADS, INDEX_DIM, device=device).to(torch.float8_e4m3fn),
            key_pages=random_pages(case.batch * pages, device),
            weights=torch.randn(case.batch, 1, INDEX_HEADS, device=device) / INDEX_HEADS,
            block_table=table,
            lengths=torch.full((case.batch,), case.keys, dtype=torch.int32, device=device),
        )

    def _our_logits(self) -> list[Call]:
        from pdwatch.kernels.triton_indexer import paged_indexer_logits

        out = torch.empty(self.case.batch, self.case.maximum, dtype=torch.float32, device=self.device)

        def call(inputs: IndexerInputs) -> Tensor:
            arguments = (inputs.query, inputs.key_pages, inputs.weights, inputs.block_table, inputs.lengths)
            return paged_indexer_logits(*arguments, layout=IndexKeyLayout.FP8, page_size=INDEX_PAGE, out=out)

        return [partial(call, inputs) for inputs in self.sets]

    def _our_choice(self) -> list[Call]:
        from pdwatch.kernels.triton_indexer import indexer_workspace
        from pdwatch.kernels.triton_topk import indexer_topk

        out = torch.empty(self.case.batch, CHOSEN, dtype=torch.int32, device=self.device)
        workspace = indexer_workspace(self.case.batch, 1, self.case.maximum, self.device)

        def call(inputs: IndexerInputs) -> Tensor:
            arguments = (inputs.query, inputs.key_pages, inputs.weights, inputs.block_table, inputs.lengths, CHOSEN)
            layout = IndexKeyLayout.FP8
            return indexer_topk(*arguments, layout=layout, page_size=INDEX_PAGE, out=out, workspace=workspace)

        return [partial(call, inputs) for inputs in self.sets]

    def _deep_gemm(self) -> list[Call]:
        import deep_gemm

        def call(inputs: IndexerInputs, context: Tensor, schedule: object) -> Tensor:
            cache = inputs.key_pages.view(-1, INDEX_PAGE, 1, INDEX_DIM + 4)
            arguments = (inputs.query, cache, inputs.weights[:, 0], context, inputs.block_table, schedule)
            logits: Tensor = deep_gemm.fp8_paged_mqa_logits(*arguments, self.case.maximum, False)
            return logits

        calls: list[Call] = []
        for inputs in self.sets:
            context = inputs.lengths[:, None].contiguous()
            schedule = deep_gemm.get_paged_mqa_logits_metadata(context, INDEX_PAGE, deep_gemm.get_num_sms())
            calls.append(partial(call, inputs, context, schedule))
        return calls

    def _eager(self) -> list[Call]:
        if self.case.batch * self.case.maximum > _MOST_EAGER_KEYS:
            raise Unsuitable("would score too many keys at once")

        def call(inputs: IndexerInputs) -> Tensor:
            arguments = (inputs.query, inputs.key_pages, inputs.weights, inputs.block_table, inputs.lengths)
            return eager_indexer_topk(*arguments, min(CHOSEN, self.case.maximum), INDEX_PAGE)

        return [partial(call, inputs) for inputs in self.sets[:1]]


def random_pages(pages: int, device: str) -> Tensor:
    """Pages of normal keys as a writer of the cache packs them: the logits decide how long a choice takes."""
    pool = torch.empty(pages, page_bytes(IndexKeyLayout.FP8, INDEX_PAGE), dtype=torch.uint8, device=device)
    for first in range(0, pages, _PAGES_PACKED_AT_ONCE):
        part = pool[first : first + _PAGES_PACKED_AT_ONCE]
        keys = torch.randn(len(part), INDEX_PAGE, INDEX_DIM, device=device)
        part.copy_(pack_index_keys(keys, IndexKeyLayout.FP8, round_scales=True))
    return pool
