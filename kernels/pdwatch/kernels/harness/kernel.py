"""A kernel under test: what it computes, what it is fed, and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Any]
"""Arguments by name: tensors, and constants that a captured graph may bake in (scales, layouts, page sizes)."""

Outputs = dict[str, Tensor]
"""Results by name. The first dimension of every result runs over the rows of the batch."""


class Family(StrEnum):
    SPARSE_MLA = "sparse_mla"
    INDEXER_LOGITS = "indexer_logits"
    TOPK = "topk"
    CUSTOM = "custom"


class Kind(StrEnum):
    """What a case is for."""

    RANDOM = "random"
    ODD = "odd"
    TIES = "ties"
    ADVERSARIAL = "adversarial"


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs.

    `unread`  elements of an input that must not influence any result: a bool mask shaped as the input
    `decoys`  for an integer input, a legal value that leads somewhere wrong (a page full of NaN): it stands in the
              unread elements first, so that a kernel that reads them is found before it makes the device fault
    """

    name: str
    kind: Kind
    inputs: Inputs
    unread: Mapping[str, Tensor] = field(default_factory=dict)
    decoys: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """One result of a reference.

    `value`      float64, or an integer dtype for results that are exact
    `magnitude`  float64, broadcastable to `value`: what rounding errors are proportional to. None: root mean square
                 of each row
    `defined`    bool mask of the elements that a kernel must write. None: all
    """

    value: Tensor
    magnitude: Tensor | None = None
    defined: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|result - value| <= ulps * ulp(value) + of_magnitude * magnitude, ulp in the dtype of the result."""

    reason: str
    ulps: float = 0.0
    of_magnitude: float = 0.0

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("a tolerance without a reason: say where the error it allows comes from")


@dataclass(frozen=True, slots=True)
class Buffers:
    """Memory that the caller owns: one tensor for each result, and whatever the kernel asks for beside them."""

    outputs: Outputs
    workspace: Any = None


class Promise(StrEnum):
    """What a kernel claims. A check of something that is not claimed does not apply, and says so."""

    DETERMINISTIC = "deterministic"
    BATCH_INVARIANT = "batch_invariant"
    # elements that the reference leaves undefined keep what they held
    UNDEFINED_UNTOUCHED = "undefined_untouched"
    CAPTURABLE = "capturable"
    # nothing is allocated when buffers are given
    ALLOCATES_NOTHING = "allocates_nothing"
    # the workspace may hold anything when the kernel starts
    ANY_WORKSPACE = "any_workspace"
    # time follows the true lengths, not the configured maximum
    WORK_BY_LENGTH = "work_by_length"


ALL_PROMISES = frozenset(Promise)

Run = Callable[[Inputs, Buffers | None], Outputs]
Reference = Callable[[Inputs], Mapping[str, Expected]]
CaseMaker = Callable[[int, torch.device], Iterable[Case]]


@dataclass(frozen=True, kw_only=True)
class KernelUnderTest:
    """Everything the checks need to know of a kernel.

    run          computes the results; into `buffers` when they are given
    reference    the same in float64, from the same bytes
    cases        named inputs made from a seed
    tolerances   for each result that is compared with the reference
    batched      batch axis of each input that has one
    buffers      makes the caller's buffers for inputs; None: the kernel always allocates
    second_reference  another implementation of the reference by another hand; both must agree
    variants     inputs that must give bitwise the same results: pages moved, page stride changed, table wider
    replays      for capture: groups ("buckets") of cases of equal shapes; the first of each group is the dummy that is
                 captured
    huge         a case whose offsets pass 2^31; None when it does not fit
    timing       inputs for (length, maximum)
    invalid      inputs that must be refused with ValueError, each with what is wrong with it
    judge        replaces the comparison: what is wrong with the results, or None
    operators_only  all work goes through PyTorch operators, so that a machine without GPU can record and replay it
    """

    name: str
    family: Family
    run: Run
    reference: Reference
    cases: CaseMaker
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    batched: Mapping[str, int] = field(default_factory=dict)
    buffers: Callable[[Inputs], Buffers] | None = None
    second_reference: Callable[[Inputs], Outputs] | None = None
    variants: Callable[[Case, torch.Generator], Iterable[tuple[str, Inputs]]] | None = None
    replays: Callable[[int, torch.device], Sequence[Sequence[Case]]] | None = None
    huge: Callable[[int, torch.device], Case | None] | None = None
    timing: Callable[[int, int, torch.device], Inputs] | None = None
    invalid: Callable[[Inputs], Iterable[tuple[str, Inputs]]] | None = None
    judge: Callable[[Inputs, Outputs, Mapping[str, Expected]], str | None] | None = None
    promises: frozenset[Promise] = ALL_PROMISES
    devices: tuple[str, ...] = ("cpu", "cuda")
    operators_only: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("a kernel without a name: name it")
        if self.judge is None and not self.tolerances:
            raise ValueError(f"kernel `{self.name}` has no tolerance: give one for each result, or a judge")

    def promises_to_be(self, promise: Promise) -> bool:
        return promise in self.promises


def rows_of(kernel: KernelUnderTest, inputs: Inputs) -> int:
    """Rows of the batch. 0 when no input has a batch axis."""
    for name, axis in kernel.batched.items():
        if isinstance(inputs.get(name), Tensor):
            return int(inputs[name].shape[axis])
    return 0


def take_rows(kernel: KernelUnderTest, inputs: Inputs, rows: Sequence[int]) -> dict[str, Any]:
    """The same inputs for these rows of the batch, in this order."""
    taken = dict(inputs)
    for name, axis in kernel.batched.items():
        if isinstance(inputs.get(name), Tensor):
            index = torch.tensor(rows, device=inputs[name].device)
            taken[name] = _selected(inputs[name], axis, index)
    return taken


def _selected(tensor: Tensor, axis: int, index: Tensor) -> Tensor:
    # not every device selects rows of 8-bit floats
    if tensor.dtype.is_floating_point and tensor.element_size() == 1:
        return tensor.view(torch.uint8).index_select(axis, index).view(tensor.dtype)
    return tensor.index_select(axis, index)
