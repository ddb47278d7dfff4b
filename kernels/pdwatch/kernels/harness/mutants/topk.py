"""Choice of the best positions in eager PyTorch, by sortable keys. A right kernel; mutants override one step."""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.harness.kernel import Buffers, Inputs, Outputs


class EagerTopk:
    """The kernel; `run` is what the harness calls."""

    def buffers(self, inputs: Inputs) -> Buffers:
        logits = inputs["logits"]
        positions = logits.new_empty((logits.shape[0], inputs["count"]), dtype=torch.int32)
        return Buffers({"positions": positions}, self.workspace(inputs))

    def workspace(self, inputs: Inputs) -> dict[str, Tensor]:
        """A sortable key for each position."""
        return {"keys": inputs["logits"].new_empty(inputs["logits"].shape, dtype=torch.int64)}

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        self.validate(inputs)
        given = buffers if buffers is not None else self.buffers(inputs)
        given.workspace["keys"].copy_(self.keys(inputs["logits"]))
        counts = self.counts(inputs)
        positions = torch.arange(inputs["logits"].shape[1], device=counts.device)
        beyond = positions >= counts[:, None]
        keys = given.workspace["keys"].masked_fill(beyond, torch.iinfo(torch.int64).min)
        best = min(inputs["count"], keys.shape[1])
        chosen = self.best(keys, best)
        chosen = chosen.masked_fill(chosen >= counts[:, None], keys.shape[1]).sort(dim=-1).values
        self.write(given, chosen, keys.shape[1])
        return given.outputs

    def validate(self, inputs: Inputs) -> None:
        if inputs["logits"].dtype != torch.float32:
            raise ValueError(f"logits are {inputs['logits'].dtype}: give float32")
        if inputs["count"] < 1:
            raise ValueError(f"count is {inputs['count']}: give at least 1")
        if inputs["lengths"].shape != inputs["logits"].shape[:1]:
            raise ValueError(f"lengths are {list(inputs['lengths'].shape)}: give one for each row")

    def counts(self, inputs: Inputs) -> Tensor:
        lengths: Tensor = inputs["lengths"]
        return lengths

    def keys(self, logits: Tensor) -> Tensor:
        """Orders by value, NaN below everything, then by lower position; no two of a row are equal."""
        bits = self.bits(logits)
        ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
        ordered = self.unordered(ordered, logits)
        return ordered * (1 << 31) + self.tie_break(logits)

    def bits(self, logits: Tensor) -> Tensor:
        # adding +0.0 turns -0.0 into +0.0
        return (logits + 0.0).view(torch.int32)

    def unordered(self, ordered: Tensor, logits: Tensor) -> Tensor:
        return ordered.masked_fill(logits.isnan(), -(1 << 31))

    def tie_break(self, logits: Tensor) -> Tensor:
        positions = torch.arange(logits.shape[1], device=logits.device)
        return torch.neg(positions - (1 << 30))

    def best(self, keys: Tensor, count: int) -> Tensor:
        return keys.topk(count, dim=-1, sorted=False).indices

    def write(self, given: Buffers, chosen: Tensor, width: int) -> None:
        target = given.outputs["positions"]
        target.fill_(-1)
        target[:, : chosen.shape[1]] = chosen.masked_fill(chosen == width, -1)
