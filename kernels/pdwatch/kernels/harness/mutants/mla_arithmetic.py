"""Mutants of sparse MLA: what is computed, and from which bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.harness.families.sparse_mla import scopes_of
from pdwatch.kernels.harness.kernel import Buffers, Inputs
from pdwatch.kernels.harness.mutants.base import Herd
from pdwatch.kernels.harness.mutants.mla import SPLIT, EagerSparseMla

HERD = Herd()


@HERD.planted("B16", "poison")
class OnlyTheScoreIsMasked(EagerSparseMla):
    """Rows that are not there are loaded from slot 0 and multiplied by a weight of zero."""

    def masked(self, rows: Tensor, here: Tensor) -> Tensor:
        return rows


@HERD.planted("B16", "adversarial")
class EmptyRowIsNan(EagerSparseMla):
    """A row without keys divides zero by zero."""

    def write(self, given: Buffers, out: Tensor, lse: Tensor) -> None:
        super().write(given, torch.where(lse[..., None] == float("-inf"), float("nan"), out), lse)


@HERD.planted("B16", "adversarial")
class EmptyRowHasInfiniteLse(EagerSparseMla):
    """A row without keys has lse +inf, by another library's convention."""

    def write(self, given: Buffers, out: Tensor, lse: Tensor) -> None:
        super().write(given, out, torch.where(lse == float("-inf"), float("inf"), lse))


@HERD.planted("overflow", "adversarial")
class ExponentialWithoutPeak(EagerSparseMla):
    """The largest score is not subtracted before the exponential."""

    def peak(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores[..., 0])


@HERD.planted("overflow", "adversarial")
class SinkByExponentials(EagerSparseMla):
    """exp(lse) / (exp(lse) + exp(sink)) overflows where a sigmoid does not."""

    def with_sink(self, out: Tensor, lse: Tensor, sink: Tensor | None) -> Tensor:
        if sink is None:
            return out
        return out * (lse.exp() / (lse.exp() + sink.exp())).masked_fill(lse == float("-inf"), 0.0)[..., None]


@HERD.planted("formula", "numerics")
class LseIsBaseTwo(EagerSparseMla):
    """The lse is a binary logarithm."""

    def write(self, given: Buffers, out: Tensor, lse: Tensor) -> None:
        super().write(given, out, lse * 1.4426950408889634)


@HERD.planted("formula", "numerics")
class LseIncludesSink(EagerSparseMla):
    """The sink is counted in the lse that is returned."""

    def merge(self, inputs: Inputs, partial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        out, lse = super().merge(inputs, partial)
        sink = inputs["sink"]
        return out, lse if sink is None else torch.logaddexp(lse, sink.expand_as(lse))


@HERD.planted("precision", "numerics")
class WeightsInEightBits(EagerSparseMla):
    """Softmax weights are rounded to e4m3 for the second product."""

    def weights(self, scores: Tensor, peak: Tensor) -> Tensor:
        return super().weights(scores, peak).to(torch.float8_e4m3fn).to(torch.float32)


@HERD.planted("precision", "numerics")
class ScoresInBfloat(EagerSparseMla):
    """Scores are stored as bf16 between the two products."""

    def scores(self, inputs: Inputs, query: Tensor, keys: Tensor, present: Tensor) -> Tensor:
        return super().scores(inputs, query, keys, present).to(torch.bfloat16).to(torch.float32)


@HERD.planted("merge", "numerics")
class SplitsMergedUnweighted(EagerSparseMla):
    """Partial results are added without bringing them to a common peak."""

    def merge(self, inputs: Inputs, partial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        peak = partial["peak"].amax(dim=0, keepdim=True).expand_as(partial["peak"])
        return super().merge(inputs, {**partial, "peak": peak})


@HERD.planted("tail", "odd_sizes")
class LastPartialSplitDropped(EagerSparseMla):
    """The number of splits is rounded down."""

    def splits(self, inputs: Inputs) -> int:
        return max(self.keys(inputs) // SPLIT, 1)


@HERD.planted("B17", "numerics")
class ScalesBesideValues(EagerSparseMla):
    """Pages are read as 584 bytes a token instead of data rows and then scale rows."""

    def data_start(self, base: Tensor, offset: Tensor) -> Tensor:
        return base + offset * 584

    def scale_start(self, base: Tensor, offset: Tensor, page_size: int) -> Tensor:
        return base + offset * 584 + 576


@HERD.planted("B17", "numerics")
class ScalesWithoutPad(EagerSparseMla):
    """Scale rows are taken to be 7 bytes, without the pad."""

    def scale_start(self, base: Tensor, offset: Tensor, page_size: int) -> Tensor:
        return base + page_size * 576 + offset * 7


@HERD.planted("B17", "poison")
class PadByteMatters(EagerSparseMla):
    """The eighth scale byte, which belongs to nothing, is or-ed into the seventh."""

    def taken(self, pages: Tensor, page: Tensor, offset: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
        codes, rope, exponents = super().taken(pages, page, offset, page_size)
        pad = pages[page, page_size * 576 + offset * 8 + 7]
        return codes, rope, torch.cat([exponents[..., :6], exponents[..., 6:] | (pad & 0x80)[..., None]], dim=-1)


@HERD.planted("B15", "numerics", "layout_invariance")
class PagesTakenToBeContiguous(EagerSparseMla):
    """The page stride is computed from the page size instead of asked from the tensor."""

    def taken(self, pages: Tensor, page: Tensor, offset: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
        packed = pages.as_strided(pages.shape, (pages.shape[1], 1))
        return super().taken(packed, page, offset, page_size)


@HERD.planted("B14", "int64")
class OffsetsInThirtyTwoBits(EagerSparseMla):
    """page * stride is a product of 32-bit integers."""

    def data_start(self, base: Tensor, offset: Tensor) -> Tensor:
        return base.to(torch.int32).to(torch.int64) + offset * 576


@HERD.planted("B15", "numerics")
class TokensAndHeadsSwapped(EagerSparseMla):
    """Heads and query tokens are walked in the other order, which only several query tokens show."""

    def scores(self, inputs: Inputs, query: Tensor, keys: Tensor, present: Tensor) -> Tensor:
        batch, tokens, heads, dim = query.shape
        mixed = query.reshape(batch, heads, tokens, dim).transpose(1, 2)
        return super().scores(inputs, mixed, keys, present)


@HERD.planted("indices", "numerics")
class FirstMissingEntryEndsTheList(EagerSparseMla):
    """The first -1 is taken for the end of the indices."""

    def kept(self, indices: Tensor, lengths: Tensor | None) -> Tensor:
        return super().kept(indices, lengths) & ((indices < 0).cumsum(dim=-1) == 0)


@HERD.planted("indices", "numerics")
class LengthsIgnored(EagerSparseMla):
    """All entries of the indices count, whatever the lengths say."""

    def kept(self, indices: Tensor, lengths: Tensor | None) -> Tensor:
        return super().kept(indices, None)


@HERD.planted("indices", "numerics")
class OneLengthForBothScopes(EagerSparseMla):
    """The lengths of the window cut the indexed scope."""

    def gathered(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        lengths = {f"{scope}_lengths": inputs["window_lengths"] for scope in scopes_of(inputs)}
        return super().gathered({**inputs, **lengths})


@HERD.planted("indices", "adversarial")
class DuplicatesCountOnce(EagerSparseMla):
    """An index that stands twice is attended to once."""

    def kept(self, indices: Tensor, lengths: Tensor | None) -> Tensor:
        kept = super().kept(indices, lengths)
        same = (indices[..., :, None] == indices[..., None, :]) & kept[..., None, :]
        return kept & ~same.tril(-1).any(dim=-1)


@HERD.planted("B12", "adversarial", "poison")
class LengthZeroMeansAll(EagerSparseMla):
    """A length of 0, as padded rows have it, is taken for "no length given"."""

    def kept(self, indices: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is not None:
            lengths = torch.where(lengths == 0, indices.shape[-1], lengths)
        return super().kept(indices, lengths)


@HERD.planted("B11", "poison")
class ReadsOneLengthTooMany(EagerSparseMla):
    """The schedule reads lengths[batch], as if a prefix sum had one entry more."""

    def kept(self, indices: Tensor, lengths: Tensor | None) -> Tensor:
        kept = super().kept(indices, lengths)
        if lengths is None:
            return kept
        end = (lengths.storage_offset() + len(lengths) + 1) * lengths.element_size()
        if lengths.untyped_storage().nbytes() < end:
            # nothing stands behind these lengths that could be read
            return kept
        following = lengths.as_strided((len(lengths),), (1,), lengths.storage_offset() + 1)
        return kept & (following >= 0)[:, None, None]
