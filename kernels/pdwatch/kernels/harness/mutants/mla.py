"""Sparse MLA decode in eager PyTorch on the production layouts, in the steps that a fast kernel has.

Split-KV with partial results in a workspace and a merge in a fixed order, no synchronisation, every size from shapes.
It is a right kernel; mutants override one step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.harness.families.sparse_mla import VALUE_DIM, scopes_of
from pdwatch.kernels.harness.kernel import Buffers, Inputs, Outputs

SPLIT = 32


class EagerSparseMla:
    """The kernel; `run` is what the harness calls."""

    layout = "fp8_v4"

    def buffers(self, inputs: Inputs) -> Buffers:
        query = inputs["query"]
        rows = query.shape[:3]
        outputs = {
            "out": query.new_empty((*rows, VALUE_DIM)),
            "lse": query.new_empty(rows, dtype=torch.float32),
        }
        return Buffers(outputs, self.workspace(inputs))

    def workspace(self, inputs: Inputs) -> dict[str, Tensor]:
        """Partial numerators, denominators and peaks of each split."""
        query = inputs["query"]
        shape = (self.splits(inputs), *query.shape[:3])
        return {
            "numerator": query.new_empty((*shape, VALUE_DIM), dtype=torch.float32),
            "denominator": query.new_empty(shape, dtype=torch.float32),
            "peak": query.new_empty(shape, dtype=torch.float32),
        }

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        self.validate(inputs)
        given = buffers if buffers is not None else self.buffers(inputs)
        slots, present = self.gathered(inputs)
        query = inputs["query"].to(torch.float32)
        partial = given.workspace
        for split in range(self.splits(inputs)):
            part = slice(split * self.split_size(inputs), (split + 1) * self.split_size(inputs))
            keys = self.load(inputs, slots[..., part, :], present[..., part])
            scores = self.scores(inputs, query, keys, present[..., part])
            peak = self.peak(scores)
            weights = self.weights(scores, peak)
            partial["numerator"][split] = _product(weights, keys[..., :VALUE_DIM])
            partial["denominator"][split] = weights.sum(dim=-1)
            partial["peak"][split] = peak
        out, lse = self.merge(inputs, partial)
        self.write(given, out, lse)
        return given.outputs

    def validate(self, inputs: Inputs) -> None:
        query, pages = inputs["query"], inputs["window_pages"]
        if query.dtype != torch.bfloat16 or query.dim() != 4:
            raise ValueError(f"query is {query.dtype} of {query.dim()} dimensions: give bfloat16 of 4")
        if pages.stride(-1) != 1:
            raise ValueError(f"pages have a last stride of {pages.stride(-1)}: give contiguous rows")
        for scope in scopes_of(inputs):
            if inputs[f"{scope}_indices"].dtype != torch.int32:
                raise ValueError(f"indices are {inputs[f'{scope}_indices'].dtype}: give int32")

    def split_size(self, inputs: Inputs) -> int:
        """Keys of a split: a constant, so that a row's sums do not depend on its company."""
        return SPLIT

    def keys(self, inputs: Inputs) -> int:
        return sum(inputs[f"{scope}_indices"].shape[-1] for scope in scopes_of(inputs))

    def splits(self, inputs: Inputs) -> int:
        return -(-self.keys(inputs) // self.split_size(inputs))

    def gathered(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """For each key: (scope, slot) int64 [batch, tokens, keys, 2] with slot 0 where none is, and where one is."""
        pairs, present = [], []
        for number, scope in enumerate(scopes_of(inputs)):
            indices = inputs[f"{scope}_indices"]
            kept = self.kept(indices, inputs[f"{scope}_lengths"])
            slots = self.slots(indices, kept)
            pairs.append(torch.stack([torch.full_like(slots, number), slots], dim=-1))
            present.append(kept)
        return torch.cat(pairs, dim=2), torch.cat(present, dim=2)

    def kept(self, indices: Tensor, lengths: Tensor | None) -> Tensor:
        kept = indices >= 0
        if lengths is not None:
            kept = kept & (torch.arange(indices.shape[-1], device=indices.device) < lengths[:, None, None])
        return kept

    def slots(self, indices: Tensor, kept: Tensor) -> Tensor:
        # absent entries may hold anything: they must not become addresses
        return indices.masked_fill(~kept, 0).to(torch.int64)

    def load(self, inputs: Inputs, slots: Tensor, present: Tensor) -> Tensor:
        """Rows [batch, tokens, keys, dim] fp32; zeros where no key is."""
        scopes = scopes_of(inputs)
        rows = None
        for number, scope in enumerate(scopes):
            here = present & (slots[..., 0] == number)
            mine = self.rows(inputs, scope, slots[..., 1].masked_fill(~here, 0))
            mine = self.masked(mine, here)
            rows = mine if rows is None else rows + mine
        assert rows is not None
        return rows

    def masked(self, rows: Tensor, here: Tensor) -> Tensor:
        # the load is masked, not only the score: 0 * NaN of a row that nobody wrote is NaN
        return rows.masked_fill(~here[..., None], 0.0)

    def rows(self, inputs: Inputs, scope: str, slots: Tensor) -> Tensor:
        pages, page_size = inputs[f"{scope}_pages"], inputs[f"{scope}_page_size"]
        page = slots.div(page_size, rounding_mode="floor")
        return self.dequantised(self.taken(pages, page, slots % page_size, page_size))

    def taken(self, pages: Tensor, page: Tensor, offset: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Bytes of values, bytes of rope and scale exponents of each key."""
        base = page * pages.stride(0)
        memory = pages.as_strided(((pages.shape[0] - 1) * pages.stride(0) + pages.shape[1],), (1,))
        start = self.data_start(base, offset)

        def bytes_at(first: Tensor, count: int) -> Tensor:
            places = first[..., None] + torch.arange(count, device=pages.device)
            return torch.index_select(memory, 0, places.flatten()).view(places.shape)

        exponents = bytes_at(self.scale_start(base, offset, page_size), 7)
        return bytes_at(start, 448), bytes_at(start + 448, 128), exponents

    def data_start(self, base: Tensor, offset: Tensor) -> Tensor:
        return base + offset * 576

    def scale_start(self, base: Tensor, offset: Tensor, page_size: int) -> Tensor:
        return base + page_size * 576 + offset * 8

    def dequantised(self, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        codes, rope, exponents = parts
        nope = codes.view(torch.float8_e4m3fn).to(torch.float32)
        nope = nope.view(*nope.shape[:-1], 7, 64) * self.scale(exponents)[..., None]
        return torch.cat([nope.flatten(-2), rope.view(torch.bfloat16).to(torch.float32)], dim=-1)

    def scale(self, exponents: Tensor) -> Tensor:
        """UE8M0; 255 is NaN."""
        value = torch.exp2(exponents.to(torch.float32) - 127)
        return value.masked_fill(exponents == 255, float("nan"))

    def scores(self, inputs: Inputs, query: Tensor, keys: Tensor, present: Tensor) -> Tensor:
        scale: float = inputs["scale"]
        scores = _product(query, keys.transpose(-1, -2)) * scale
        return scores.masked_fill(~present[:, :, None], float("-inf"))

    def peak(self, scores: Tensor) -> Tensor:
        return scores.amax(dim=-1)

    def weights(self, scores: Tensor, peak: Tensor) -> Tensor:
        # without a key the peak is -inf, and -inf - -inf is NaN
        return torch.exp(scores - peak.masked_fill(peak == float("-inf"), 0.0)[..., None])

    def merge(self, inputs: Inputs, partial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Splits in ascending order."""
        peak = partial["peak"].amax(dim=0)
        factor = torch.exp(partial["peak"] - peak.masked_fill(peak == float("-inf"), 0.0))
        numerator, denominator = torch.zeros_like(partial["numerator"][0]), torch.zeros_like(peak)
        for split in range(self.splits(inputs)):
            numerator = numerator + factor[split][..., None] * partial["numerator"][split]
            denominator = denominator + factor[split] * partial["denominator"][split]
        empty = denominator == 0
        lse = (peak + denominator.log()).masked_fill(empty, float("-inf"))
        out = numerator / denominator.masked_fill(empty, 1.0)[..., None]
        return self.with_sink(out, lse, inputs["sink"]), lse

    def with_sink(self, out: Tensor, lse: Tensor, sink: Tensor | None) -> Tensor:
        if sink is None:
            return out
        share = torch.sigmoid(lse - sink)
        # -inf - -inf: no key and no sink
        return out * share.masked_fill(lse == float("-inf"), 0.0)[..., None]

    def write(self, given: Buffers, out: Tensor, lse: Tensor) -> None:
        given.outputs["out"].copy_(out)
        given.outputs["lse"].copy_(lse)


def _product(left: Tensor, right: Tensor) -> Tensor:
    # PyTorch chooses a matrix kernel by shape: in float64, then rounded, the choice leaves no trace
    return torch.matmul(left.to(torch.float64), right.to(torch.float64)).to(torch.float32)
