"""Copies of inputs and buffers with watched memory around them, and poison for what must not be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.kernel import Buffers, Case, Inputs, Outputs

# NaN in fp32, bf16, e4m3 and UE8M0; -1 in integers
NAN_BYTE = 0xFF
# a huge finite fp32 and bf16, NaN in e4m3; more than any page has in integers
HUGE_BYTE = 0x7F
# an ordinary number in every dtype
PLAIN_BYTE = 0x25
# bytes before and after a tensor; a multiple of every alignment that kernels ask for
BAND_BYTES = 4096

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor, strides as they were, inside memory of its own whose other bytes are all `fill`."""

    tensor: Tensor
    memory: Tensor
    fill: int

    def overrun(self) -> bool:
        """Was a byte outside the tensor's elements written?"""
        outside = torch.ones_like(self.memory, dtype=torch.bool)
        _elements(outside, self.tensor).fill_(False)
        return bool((outside & (self.memory != self.fill)).any())


def guard(tensor: Tensor, fill: int = NAN_BYTE, band: int = BAND_BYTES) -> Guarded:
    """A guarded copy of `tensor`."""
    size = tensor.element_size()
    extent = 1 + sum((length - 1) * abs(stride) for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    extent = 0 if tensor.numel() == 0 else extent
    memory = torch.full((2 * band + extent * size,), fill, dtype=torch.uint8, device=tensor.device)
    view = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), band // size)
    view.copy_(tensor)
    return Guarded(view, memory, fill)


def guard_inputs(inputs: Inputs, fill: int = NAN_BYTE) -> dict[str, Any]:
    """Inputs whose tensors are guarded copies."""
    return {name: guard(value, fill).tensor if isinstance(value, Tensor) else value for name, value in inputs.items()}


def poisoned(case: Case, fill: int, decoys: bool) -> dict[str, Any]:
    """Guarded copies of the inputs with `fill` in everything unread; integers get their decoy first if asked for."""
    result: dict[str, Any] = {}
    for name, value in case.inputs.items():
        if not isinstance(value, Tensor):
            result[name] = value
            continue
        guarded = guard(value, fill)
        mask = case.unread.get(name)
        if mask is not None:
            _fill_elements(guarded.tensor, mask, fill)
        if decoys and name in case.decoys:
            if mask is not None:
                guarded.tensor.masked_fill_(mask, case.decoys[name])
            _fill_outside(guarded, case.decoys[name])
        result[name] = guarded.tensor
    return result


def guard_buffers(buffers: Buffers, fill: int, workspace_fill: int | None) -> tuple[Buffers, dict[str, Guarded]]:
    """Buffers whose outputs are guarded and full of `fill`; the workspace is filled in place if asked for."""
    guards = {name: guard(tensor, fill) for name, tensor in buffers.outputs.items()}
    for guarded in guards.values():
        guarded.memory.fill_(fill)
    if workspace_fill is not None:
        for tensor in tensors_in(buffers.workspace):
            fill_bytes(tensor, workspace_fill)
    return Buffers({name: guarded.tensor for name, guarded in guards.items()}, buffers.workspace), guards


def tensors_in(workspace: Any) -> Iterator[Tensor]:
    """All tensors of a workspace: a tensor, a mapping, a sequence, or an object with fields."""
    if isinstance(workspace, Tensor):
        yield workspace
    elif isinstance(workspace, Mapping):
        for value in workspace.values():
            yield from tensors_in(value)
    elif isinstance(workspace, list | tuple):
        for value in workspace:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(workspace) and not isinstance(workspace, type):
        for entry in dataclasses.fields(workspace):
            yield from tensors_in(getattr(workspace, entry.name))
    elif hasattr(workspace, "__dict__"):
        yield from tensors_in(vars(workspace))


def snapshot(inputs: Inputs) -> dict[str, Tensor]:
    """All bytes of the memory behind the inputs."""
    return {name: _memory(value).clone() for name, value in inputs.items() if isinstance(value, Tensor)}


def changed_inputs(inputs: Inputs, before: Mapping[str, Tensor]) -> list[str]:
    """Names of inputs whose memory is not as it was."""
    return [name for name, memory in before.items() if not torch.equal(_memory(inputs[name]), memory)]


def clones(outputs: Outputs) -> Outputs:
    return {name: tensor.clone() for name, tensor in outputs.items()}


def fill_bytes(tensor: Tensor, fill: int) -> None:
    """Every element of `tensor` becomes the bytes `fill`."""
    as_integers = tensor.view(_INTEGERS[tensor.element_size()])
    as_integers.copy_(_pattern(as_integers, fill).expand(tensor.shape))


def _fill_elements(tensor: Tensor, mask: Tensor, fill: int) -> None:
    # bit for bit: a copy between float dtypes may quiet a NaN, an integer view may not
    as_integers = tensor.view(_INTEGERS[tensor.element_size()])
    as_integers.copy_(torch.where(mask, _pattern(as_integers, fill), as_integers))


def _fill_outside(guarded: Guarded, value: int) -> None:
    keep = guarded.tensor.clone()
    guarded.memory.view(guarded.tensor.dtype).fill_(value)
    guarded.tensor.copy_(keep)


def _pattern(tensor: Tensor, fill: int) -> Tensor:
    return torch.full((tensor.element_size(),), fill, dtype=torch.uint8, device=tensor.device).view(tensor.dtype)[0]


def _memory(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def _elements(flags: Tensor, tensor: Tensor) -> Tensor:
    """The view of per-byte `flags` that covers the elements of `tensor`."""
    size = tensor.element_size()
    shape = (*tensor.shape, size)
    strides = (*(stride * size for stride in tensor.stride()), 1)
    return flags.as_strided(shape, strides, tensor.storage_offset() * size)
