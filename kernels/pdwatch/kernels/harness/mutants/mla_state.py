"""Mutants of sparse MLA: memory, company, capture."""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.harness.families.sparse_mla import scopes_of
from pdwatch.kernels.harness.kernel import Buffers, Inputs, Outputs
from pdwatch.kernels.harness.mutants.base import Herd
from pdwatch.kernels.harness.mutants.mla import SPLIT, EagerSparseMla

HERD = Herd()


@HERD.planted("B8", "outputs_written")
class EmptyRowsNotWritten(EagerSparseMla):
    """A program returns early for a row without keys and leaves its output as it was."""

    def write(self, given: Buffers, out: Tensor, lse: Tensor) -> None:
        empty = lse == float("-inf")
        super().write(
            given,
            torch.where(empty[..., None], given.outputs["out"].to(torch.float32), out),
            torch.where(empty, given.outputs["lse"], lse),
        )


@HERD.planted("B8", "outputs_written")
class WritesOneElementTooMany(EagerSparseMla):
    """The last store of the lse is not masked."""

    def write(self, given: Buffers, out: Tensor, lse: Tensor) -> None:
        super().write(given, out, lse)
        target = given.outputs["lse"]
        target.as_strided((1,), (1,), target.storage_offset() + target.numel()).fill_(1.0)


@HERD.planted("B8", "workspace")
class ScratchAddedTo(EagerSparseMla):
    """The first split's numerator is added to what the workspace held."""

    def merge(self, inputs: Inputs, partial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        if "sum" not in partial:
            partial["sum"] = torch.zeros_like(partial["numerator"][0])
        partial["sum"] += partial["numerator"][0]
        first = partial["sum"][None]
        return super().merge(inputs, {**partial, "numerator": torch.cat([first, partial["numerator"][1:]])})


@HERD.planted("B8", "workspace")
class UnusedSplitsMerged(EagerSparseMla):
    """Splits without a key are skipped, but the merge reads what the workspace holds for them."""

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        given = buffers if buffers is not None else self.buffers(inputs)
        scratch = self.workspace(inputs)
        super().run(inputs, Buffers(given.outputs, scratch))
        for name, tensor in given.workspace.items():
            used = scratch["denominator"] > 0
            used = used[..., None] if tensor.dim() > used.dim() else used
            tensor.copy_(torch.where(used, scratch[name], tensor))
        self.write(given, *self.merge(inputs, given.workspace))
        return given.outputs


@HERD.planted("B8", "capture")
class ScratchChosenByCallNumber(EagerSparseMla):
    """Two scratch areas in turn, each cleared for the next call: Python's count is frozen by a capture."""

    def __init__(self) -> None:
        self._calls = 0
        self._areas: dict[tuple[int, ...], list[Tensor]] = {}

    def merge(self, inputs: Inputs, partial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        shape = tuple(partial["numerator"][0].shape)
        areas = self._areas.setdefault(shape, [torch.zeros(shape), torch.zeros(shape)])
        mine, following = areas[self._calls % 2], areas[(self._calls + 1) % 2]
        self._calls += 1
        mine += partial["numerator"][0]
        following.zero_()
        return super().merge(inputs, {**partial, "numerator": torch.cat([mine[None], partial["numerator"][1:]])})


@HERD.planted("B5", "concurrent")
class ScratchSharedByStreams(EagerSparseMla):
    """One scratch for each shape, whichever stream runs."""

    def __init__(self) -> None:
        self._shared: dict[str, Tensor] = {}

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        given = buffers if buffers is not None else self.buffers(inputs)
        wanted = self.workspace(inputs)
        elements = max(tensor.numel() for tensor in wanted.values())
        if not self._shared or self._shared["memory"].numel() < 3 * elements:
            self._shared["memory"] = torch.empty(12 * elements)
        parts = self._shared["memory"][: 3 * elements].view(3, elements)
        scratch = {
            name: part[: tensor.numel()].view(tensor.shape)
            for part, (name, tensor) in zip(parts, wanted.items(), strict=True)
        }
        return super().run(inputs, Buffers(given.outputs, scratch))


@HERD.planted("B6", "concurrent", "kept")
class OutputsShareMemory(EagerSparseMla):
    """Results of all batch sizes lie in one memory, as buckets that alias a pool."""

    def __init__(self) -> None:
        self._memory = torch.empty(1 << 17, dtype=torch.bfloat16)

    def buffers(self, inputs: Inputs) -> Buffers:
        made = super().buffers(inputs)
        out = made.outputs["out"]
        return Buffers({**made.outputs, "out": self._memory[: out.numel()].view(out.shape)}, made.workspace)


@HERD.planted("B8", "kept")
class ResultsCachedByAddress(EagerSparseMla):
    """Inputs at the same address are taken for the same inputs."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[Inputs, Outputs]] = {}

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        key = tuple(value.data_ptr() for value in inputs.values() if isinstance(value, Tensor))
        if key not in self._known:
            self._known[key] = (inputs, super().run(inputs, buffers))
        return self._known[key][1]


@HERD.planted("buffers", "buffers")
class BuffersIgnored(EagerSparseMla):
    """Results lie in memory of the kernel's own although buffers were given."""

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        return super().run(inputs, None)


@HERD.planted("inputs", "inputs_untouched")
class QueryScaledInPlace(EagerSparseMla):
    """The scale is multiplied into the caller's query and divided out again, which rounds."""

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        inputs["query"].mul_(1.1)
        outputs = super().run({**inputs, "scale": inputs["scale"] / 1.1}, buffers)
        inputs["query"].div_(1.1)
        return outputs


@HERD.planted("B9", "batch_invariance")
class SplitChosenByBatch(EagerSparseMla):
    """Small batches get more splits, to fill the device."""

    def split_size(self, inputs: Inputs) -> int:
        return SPLIT // 2 if len(inputs["query"]) < 3 else SPLIT


@HERD.planted("B15", "batch_invariance")
class PeakOverTheBatch(EagerSparseMla):
    """The peak that is subtracted is the largest of all rows."""

    def peak(self, scores: Tensor) -> Tensor:
        peak = super().peak(scores)
        finite = peak != float("-inf")
        return torch.where(finite, peak.amax(dim=0, keepdim=True).clamp(max=60.0), peak)


@HERD.planted("determinism", "determinism")
class SplitsMergedInAnyOrder(EagerSparseMla):
    """Partial results are added in the order in which they arrive, as atomics do."""

    def merge(self, inputs: Inputs, partial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        order = torch.randperm(self.splits(inputs))
        return super().merge(inputs, {name: tensor[order] for name, tensor in partial.items()})


@HERD.planted("B13", "layout_invariance")
class KeysSortedByAddress(EagerSparseMla):
    """Keys are sorted by slot for better loads, so the order of the sums follows the page ids."""

    def gathered(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        slots, present = super().gathered(inputs)
        order = (slots[..., 0] * (1 << 40) + slots[..., 1]).argsort(dim=-1, stable=True)
        return slots.gather(2, order[..., None].expand_as(slots)), present.gather(2, order)


@HERD.planted("B7", "capture_lint")
class LongestLengthAsked(EagerSparseMla):
    """The host asks for the longest length, to check it."""

    def validate(self, inputs: Inputs) -> None:
        super().validate(inputs)
        lengths = inputs["window_lengths"]
        if lengths is not None and int(lengths.max()) > inputs["window_indices"].shape[-1]:
            raise ValueError("a length is larger than the indices are wide")


@HERD.planted("B7", "capture_lint")
class ConstantFromTheHost(EagerSparseMla):
    """A table of powers of two is made from a Python list in every call."""

    def scale(self, exponents: Tensor) -> Tensor:
        base = torch.tensor([2.0], device=exponents.device)
        return torch.pow(base, exponents.to(torch.float32) - 127).masked_fill(exponents == 255, float("nan"))


@HERD.planted("B7", "capture_lint")
class KeysPickedByMask(EagerSparseMla):
    """Absent keys are found with `nonzero`, whose size only the device knows."""

    def slots(self, indices: Tensor, kept: Tensor) -> Tensor:
        slots = indices.to(torch.int64)
        absent = (~kept).nonzero()
        return slots.index_put(tuple(absent.T), torch.zeros((), dtype=torch.int64, device=slots.device))


@HERD.planted("B9", "replay", "capture_lint")
class SplitsFrozenAtCapture(EagerSparseMla):
    """The number of splits follows the longest row, as the host saw it when the graph was captured."""

    def splits(self, inputs: Inputs) -> int:
        longest = 0
        for scope in scopes_of(inputs):
            lengths, width = inputs[f"{scope}_lengths"], inputs[f"{scope}_indices"].shape[-1]
            end = width if lengths is None else int(lengths.max())
            longest = max(longest, end + (0 if scope == "window" else inputs["window_indices"].shape[-1]))
        return min(max(-(-longest // SPLIT), 1), super().splits(inputs))

    def workspace(self, inputs: Inputs) -> dict[str, Tensor]:
        query = inputs["query"]
        shape = (super().splits(inputs), *query.shape[:3])
        return {
            "numerator": query.new_zeros((*shape, 512), dtype=torch.float32),
            "denominator": query.new_zeros(shape, dtype=torch.float32),
            "peak": query.new_full(shape, float("-inf"), dtype=torch.float32),
        }

    def merge(self, inputs: Inputs, partial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return super().merge(inputs, {name: tensor[: self.splits(inputs)] for name, tensor in partial.items()})


@HERD.planted("B9", "replay")
class ScheduleReusedForEqualShapes(EagerSparseMla):
    """Which keys count is worked out once for each shape and reused whatever the lengths are."""

    def __init__(self) -> None:
        self._schedules: dict[tuple[int, ...], Tensor] = {}

    def kept(self, indices: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return super().kept(indices, lengths)
        within = self._schedules.setdefault(
            tuple(indices.shape), torch.arange(indices.shape[-1]) < lengths[:, None, None]
        )
        return (indices >= 0) & within


@HERD.planted("arguments", "arguments")
class NothingChecked(EagerSparseMla):
    """Arguments of any dtype are taken."""

    def validate(self, inputs: Inputs) -> None:
        return None
