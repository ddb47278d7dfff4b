"""Mutants of the indexer."""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.harness.kernel import Buffers, Inputs
from pdwatch.kernels.harness.mutants.base import Herd
from pdwatch.kernels.harness.mutants.indexer import DIM, EagerIndexer

HERD = Herd()


@HERD.planted("formula", "numerics")
class ReluAfterTheSum(EagerIndexer):
    """The heads are summed before the ReLU, which lets them be folded into one query."""

    def activated(self, scores: Tensor) -> Tensor:
        return scores

    def weighted(self, scores: Tensor, weights: Tensor) -> Tensor:
        return super().weighted(scores, weights).relu()


@HERD.planted("formula", "numerics")
class WeightsOfTheFirstToken(EagerIndexer):
    """All query tokens of a row use the first one's weights."""

    def weighted(self, scores: Tensor, weights: Tensor) -> Tensor:
        return super().weighted(scores, weights[:, :1].expand_as(weights))


@HERD.planted("B17", "numerics")
class ScalesInterleaved(EagerIndexer):
    """Pages are read as 132 bytes a key instead of values and then scales."""

    def value_start(self, base: Tensor, offset: Tensor) -> Tensor:
        return base + offset * (DIM + 4)

    def scale_start(self, base: Tensor, offset: Tensor, page_size: int) -> Tensor:
        return base + offset * (DIM + 4) + DIM


@HERD.planted("B15", "numerics")
class PageStrideFromPageSize(EagerIndexer):
    """Pages are taken to follow each other without gaps."""

    def base(self, page: Tensor, pages: Tensor) -> Tensor:
        return page * pages.shape[1]


@HERD.planted("B14", "int64")
class BaseInThirtyTwoBits(EagerIndexer):
    """The offset of a page overflows 32 bits."""

    def base(self, page: Tensor, pages: Tensor) -> Tensor:
        return super().base(page, pages).to(torch.int32).to(torch.int64)


@HERD.planted("B12", "poison")
class TableTailFollowed(EagerIndexer):
    """Entries of the block table past a row's length are followed before the mask."""

    def page_of(self, entries: Tensor, needed: Tensor) -> Tensor:
        return entries.to(torch.int64)


@HERD.planted("B16", "poison")
class KeyTailJoinsThePeak(EagerIndexer):
    """Keys are divided by the largest of their page, in which keys past the length take part."""

    def masked(self, values: Tensor, needed: Tensor) -> Tensor:
        if values.dim() == 2:
            return super().masked(values, needed)
        peak = values.abs().amax(dim=1, keepdim=True)
        return super().masked(values / peak * peak.clamp(max=448.0), needed)


@HERD.planted("lengths", "numerics")
class LengthOfTheFirstToken(EagerIndexer):
    """All query tokens of a row are cut at the first one's length."""

    def scored(self, inputs: Inputs, given: Buffers) -> Tensor:
        scored = super().scored(inputs, given)
        return scored[:, :1].expand_as(scored)


@HERD.planted("B13", "outputs_written")
class WholePagesWritten(EagerIndexer):
    """Logits are written up to the end of the last page."""

    def scored(self, inputs: Inputs, given: Buffers) -> Tensor:
        size = inputs["page_size"]
        given.workspace["keys"].copy_(-(-inputs["lengths"] // size) * size)
        return super().scored(inputs, given)


@HERD.planted("B13", "outputs_written")
class FullWidthFilled(EagerIndexer):
    """The whole row is filled with -inf first, whatever its length."""

    def write(self, inputs: Inputs, given: Buffers, logits: Tensor) -> None:
        given.outputs["logits"].fill_(float("-inf"))
        super().write(inputs, given, logits)


@HERD.planted("B11", "outputs_written")
class LengthsClampedToOne(EagerIndexer):
    """Rows of length 0 are taken to have one key, so that no row is empty."""

    def scored(self, inputs: Inputs, given: Buffers) -> Tensor:
        given.workspace["keys"].clamp_(min=1)
        return super().scored(inputs, given)


@HERD.planted("tail", "odd_sizes")
class HeadsInPairs(EagerIndexer):
    """Heads are summed two by two, and an odd one is left out."""

    def weighted(self, scores: Tensor, weights: Tensor) -> Tensor:
        even = weights.shape[-1] // 2 * 2
        return super().weighted(scores[:, :, :even], weights[..., :even])


@HERD.planted("tail", "odd_sizes", "numerics")
class LastKeyMissing(EagerIndexer):
    """The mask of the last key is off by one, so its scores are those of a key of zeros."""

    def load(self, inputs: Inputs, needed: Tensor) -> tuple[Tensor, Tensor]:
        keys, scales = super().load(inputs, needed)
        last = torch.arange(keys.shape[1], device=keys.device) == inputs["lengths"].amax(dim=1, keepdim=True) - 1
        return keys.masked_fill(last[..., None], 0.0), scales


@HERD.planted("precision", "numerics")
class HeadsSummedInBfloat(EagerIndexer):
    """The sum over the heads is kept in bf16."""

    def weighted(self, scores: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(scores[:, :, 0], dtype=torch.bfloat16)
        for head in range(weights.shape[-1]):
            total = total + (weights[:, :, head, None] * scores[:, :, head]).to(torch.bfloat16)
        return total.to(torch.float32)


@HERD.planted("B13", "replay")
class WidthFrozenAtCapture(EagerIndexer):
    """Only as many positions are scored as the longest row had when the graph was captured."""

    def scored(self, inputs: Inputs, given: Buffers) -> Tensor:
        positions = torch.arange(inputs["maximum"], device=inputs["query"].device)
        return super().scored(inputs, given) & (positions < max(int(inputs["lengths"].max()), 1))


@HERD.planted("B15", "batch_invariance", "numerics")
class TableOfTheFirstRow(EagerIndexer):
    """The row stride of the block table is taken to be 0."""

    def load(self, inputs: Inputs, needed: Tensor) -> tuple[Tensor, Tensor]:
        table = inputs["block_table"]
        return super().load({**inputs, "block_table": table[:1].expand_as(table)}, needed)
