"""What a CUDA graph does to a function, on a machine without GPU.

A tape records the PyTorch operators that a function runs and runs them again on the same tensors. As in a graph,
whatever Python decided is baked in (branches, numbers read from tensors, shapes), results lie where they lay at the
recording, and transients keep their contents between replays. Two tapes can be replayed interleaved, operator by
operator, as two streams would. Work that does not go through operators (a Triton launch) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pdwatch.kernels.harness.kernel import Outputs

# what makes the host wait for the device, or needs a size that only the device knows
_SYNCHRONISING = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::is_nonzero",
        "aten::masked_select",
        "aten::nonzero",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::bincount",
        "aten::repeat_interleave.Tensor",
    }
)
# a constant that comes from Python: on a GPU a copy from pageable memory, which a capture refuses
_FROM_HOST = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift"})
# memory without contents: nothing runs when it is replayed
_NO_WORK = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"})
_INDEXING = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})


@dataclass(frozen=True, slots=True)
class _Step:
    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    # where results go; None for a result that is one of the arguments
    results: tuple[Tensor | None, ...]

    def run(self) -> None:
        produced = self.function(*self.arguments, **self.keywords)
        for target, value in zip(self.results, _tensors(produced), strict=True):
            if target is not None:
                target.copy_(value)


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the mode untyped
    """A recording of `work`: `outputs` are its results, `replay` runs it again."""

    def __init__(self, work: Callable[[], Outputs]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.steps: list[_Step] = []
        self.synchronising: list[str] = []
        with torch.no_grad(), self:
            self.outputs: Outputs = work()

    def replay(self) -> None:
        with torch.no_grad():
            for step in self.steps:
                step.run()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        produced = function(*arguments, **keywords)
        schema = function._schema
        name = schema.name if not schema.overload_name else f"{schema.name}.{schema.overload_name}"
        self._note(name, schema.name, arguments)
        returns = schema.returns
        if schema.name in _SYNCHRONISING | _NO_WORK or not returns:
            return produced
        kinds = [entry.alias_info for entry in returns]
        if all(kind is not None and not kind.is_write for kind in kinds):
            # a view of memory that other steps fill
            return produced
        results = _tensors(produced)
        aliases = kinds if len(kinds) == len(results) else [kinds[0]] * len(results)
        targets = tuple(None if kind is not None else value for value, kind in zip(results, aliases, strict=True))
        self.steps.append(_Step(function, arguments, keywords, targets))
        return produced

    def _note(self, name: str, base: str, arguments: Sequence[Any]) -> None:
        flags = base in _INDEXING and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in arguments[1]
        )
        if name in _SYNCHRONISING or base in _SYNCHRONISING or flags:
            self.synchronising.append(f"{name}: the host waits for the device")
        elif base in _FROM_HOST:
            self.synchronising.append(f"{name}: a constant is copied from the host")


def replay_interleaved(tapes: Sequence[Tape]) -> None:
    """All tapes at once, one operator of each in turn: streams that run beside each other."""
    with torch.no_grad():
        for turn in range(max(len(tape.steps) for tape in tapes)):
            for tape in tapes:
                if turn < len(tape.steps):
                    tape.steps[turn].run()


def _tensors(produced: Any) -> list[Tensor]:
    return [value for value in tree_flatten(produced)[0] if isinstance(value, Tensor)]
