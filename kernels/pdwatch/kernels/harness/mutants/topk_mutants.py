"""Mutants of the top-k."""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.harness.kernel import Buffers, Inputs, Outputs
from pdwatch.kernels.harness.mutants.base import Herd
from pdwatch.kernels.harness.mutants.topk import EagerTopk

HERD = Herd()


@HERD.planted("ties", "ties")
class HigherPositionWins(EagerTopk):
    """Of equal logits the higher position is chosen."""

    def tie_break(self, logits: Tensor) -> Tensor:
        return torch.arange(logits.shape[1], device=logits.device)


@HERD.planted("ties", "ties")
class TiesByHash(EagerTopk):
    """Of equal logits the one is chosen that comes first in some order of the hardware's."""

    def tie_break(self, logits: Tensor) -> Tensor:
        return torch.arange(logits.shape[1], device=logits.device) * 7919 % 4093


@HERD.planted("ties", "ties")
class NegativeZeroIsLess(EagerTopk):
    """-0.0 is put below +0.0."""

    def bits(self, logits: Tensor) -> Tensor:
        return logits.view(torch.int32)


@HERD.planted("precision", "ties")
class LowBitsDropped(EagerTopk):
    """Keys have the upper 24 bits of the logits only."""

    def bits(self, logits: Tensor) -> Tensor:
        return super().bits(logits) & ~0xFF


@HERD.planted("B16", "adversarial")
class NanIsTheLargest(EagerTopk):
    """NaN is ordered by its bits, above infinity."""

    def unordered(self, ordered: Tensor, logits: Tensor) -> Tensor:
        return ordered


@HERD.planted("B16", "adversarial")
class NegativeLogitsOrderBackwards(EagerTopk):
    """The bits of negative floats are not flipped."""

    def keys(self, logits: Tensor) -> Tensor:
        ordered = self.unordered(self.bits(logits).to(torch.int64), logits)
        return ordered * (1 << 31) + self.tie_break(logits)


@HERD.planted("lengths", "numerics", "poison")
class WholeRowCounts(EagerTopk):
    """Positions past the length take part."""

    def counts(self, inputs: Inputs) -> Tensor:
        return torch.full_like(inputs["lengths"], inputs["logits"].shape[1])


@HERD.planted("lengths", "odd_sizes")
class LastPositionForgotten(EagerTopk):
    """The last position of a row never takes part."""

    def counts(self, inputs: Inputs) -> Tensor:
        return torch.clamp(inputs["lengths"] - 1, min=0)


@HERD.planted("B10", "replay", "capture_lint")
class IdentityChosenByTheHost(EagerTopk):
    """When all rows were short at capture, the identity is captured, and long rows get their first positions."""

    def keys(self, logits: Tensor) -> Tensor:
        if self._short:
            return -torch.arange(logits.shape[1], device=logits.device).expand(logits.shape)
        return super().keys(logits)

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        self._short = int(inputs["lengths"].max()) <= inputs["count"]
        return super().run(inputs, buffers)


@HERD.planted("B8", "outputs_written")
class TailNotFilled(EagerTopk):
    """What follows the last chosen position keeps what the buffer held."""

    def write(self, given: Buffers, chosen: Tensor, width: int) -> None:
        target = given.outputs["positions"]
        part = target[:, : chosen.shape[1]]
        part.copy_(torch.where(chosen == width, part, chosen.to(torch.int32)))


@HERD.planted("B8", "workspace")
class KeysNotCleared(EagerTopk):
    """Keys are combined with what the scratch held by a maximum, as a histogram that nobody zeroed."""

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        given = buffers if buffers is not None else self.buffers(inputs)
        if buffers is None:
            given.workspace["keys"].fill_(torch.iinfo(torch.int64).min)
        self._held = given.workspace["keys"].clone()
        return super().run(inputs, given)

    def keys(self, logits: Tensor) -> Tensor:
        return torch.maximum(super().keys(logits), self._held)
