"""Paged indexer logits in eager PyTorch on packed fp8 pages. It is a right kernel; mutants override one step."""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.harness.kernel import Buffers, Inputs, Outputs

DIM = 128


class EagerIndexer:
    """The kernel; `run` is what the harness calls."""

    layout = "fp8_132"

    def buffers(self, inputs: Inputs) -> Buffers:
        query = inputs["query"]
        shape = (*query.shape[:2], inputs["maximum"])
        return Buffers({"logits": query.new_empty(shape, dtype=torch.float32)}, self.workspace(inputs))

    def workspace(self, inputs: Inputs) -> dict[str, Tensor]:
        """Number of keys of each row, as a schedule would need it."""
        return {"keys": inputs["lengths"].new_empty(inputs["lengths"].shape)}

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        self.validate(inputs)
        given = buffers if buffers is not None else self.buffers(inputs)
        given.workspace["keys"].copy_(inputs["lengths"])
        logits = self.logits(inputs, given)
        self.write(inputs, given, logits)
        return given.outputs

    def validate(self, inputs: Inputs) -> None:
        if inputs["query"].dtype != torch.float8_e4m3fn:
            raise ValueError(f"query is {inputs['query'].dtype}: give float8_e4m3fn")
        if inputs["block_table"].dtype != torch.int32:
            raise ValueError(f"block_table is {inputs['block_table'].dtype}: give int32")
        if inputs["weights"].dtype != torch.float32:
            raise ValueError(f"weights are {inputs['weights'].dtype}: give float32")

    def logits(self, inputs: Inputs, given: Buffers) -> Tensor:
        scored = self.scored(inputs, given)
        keys, scales = self.load(inputs, scored.any(dim=1))
        query = inputs["query"].to(torch.float32).to(torch.float64)
        # PyTorch chooses a matrix kernel by shape: in float64, then rounded, the choice leaves no trace
        products = torch.matmul(query, keys[:, None].transpose(-1, -2).to(torch.float64)).to(torch.float32)
        scores = self.activated(products)
        return self.weighted(scores, inputs["weights"]) * scales[:, None]

    def scored(self, inputs: Inputs, given: Buffers) -> Tensor:
        """Which positions count, [batch, tokens, maximum]."""
        positions = torch.arange(inputs["maximum"], device=inputs["query"].device)
        return torch.lt(positions, given.workspace["keys"][..., None])

    def load(self, inputs: Inputs, needed: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [batch, maximum, 128] and scales [batch, maximum], zeros where none is needed."""
        page_size, pages = inputs["page_size"], inputs["key_pages"]
        positions = torch.arange(inputs["maximum"], device=pages.device)
        column = positions.div(page_size, rounding_mode="floor")
        page = self.page_of(inputs["block_table"][:, column], needed)
        base = self.base(page, pages)
        offset = positions % page_size
        memory = pages.as_strided(((pages.shape[0] - 1) * pages.stride(0) + pages.shape[1],), (1,))

        def bytes_at(first: Tensor, count: int) -> Tensor:
            places = first[..., None] + torch.arange(count, device=pages.device)
            return torch.index_select(memory, 0, places.flatten()).view(places.shape)

        codes = bytes_at(self.value_start(base, offset), DIM)
        raw = bytes_at(self.scale_start(base, offset, page_size), 4)
        keys = codes.view(torch.float8_e4m3fn).to(torch.float32)
        scales = raw.view(torch.float32)[..., 0]
        return self.masked(keys, needed[..., None]), self.masked(scales, needed)

    def page_of(self, entries: Tensor, needed: Tensor) -> Tensor:
        # what lies past a row's length may be no page at all
        return entries.masked_fill(~needed, 0).to(torch.int64)

    def base(self, page: Tensor, pages: Tensor) -> Tensor:
        return page * pages.stride(0)

    def value_start(self, base: Tensor, offset: Tensor) -> Tensor:
        return base + offset * DIM

    def scale_start(self, base: Tensor, offset: Tensor, page_size: int) -> Tensor:
        return base + page_size * DIM + offset * 4

    def masked(self, values: Tensor, needed: Tensor) -> Tensor:
        return values.masked_fill(~needed, 0.0)

    def activated(self, scores: Tensor) -> Tensor:
        return scores.relu()

    def weighted(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Sum over the heads, one after the other."""
        total = torch.zeros_like(scores[:, :, 0])
        for head in range(weights.shape[-1]):
            total = total + weights[:, :, head, None] * scores[:, :, head]
        return total

    def write(self, inputs: Inputs, given: Buffers, logits: Tensor) -> None:
        """Only scored positions; the rest keeps what it held."""
        target = given.outputs["logits"]
        target.copy_(torch.where(self.scored(inputs, given), logits, target))
