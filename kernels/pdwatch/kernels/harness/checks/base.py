"""What a check is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pdwatch.kernels.harness.compare import differing, verdict
from pdwatch.kernels.harness.kernel import Buffers, Case, Expected, Inputs, KernelUnderTest, Kind, Outputs
from pdwatch.kernels.harness.memory import clones

NEEDS_CUDA = "needs CUDA"
# inputs with more memory behind them stay where they are: the pools of the int64 check
_HOST_LIMIT_BYTES = 1 << 30


class CheckFailed(Exception):
    """A kernel does not do what the check asks. The message says where."""


class DoesNotApply(Exception):
    """The kernel has nothing that the check could look at. The message says what it lacks."""


class CannotRun(Exception):
    """The check cannot run on this machine. The message says why."""


class Body(Protocol):
    def __call__(self, subject: Subject) -> None: ...


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    `guards`   the bug classes it is there for, as docs/kernels.md numbers them, and what they look like
    `applies`  why the check does not concern this kernel, or None
    `needs`    what is missing to run it on this device, or None
    `most_seeds`  more seeds than this add nothing: what the check looks at does not depend on values
    """

    name: str
    guards: str
    body: Body
    applies: Callable[[KernelUnderTest], str | None]
    needs: Callable[[KernelUnderTest, torch.device], str | None]
    most_seeds: int | None = None


class Subject:
    """A kernel on a device with the cases of one seed, and the ways a check runs it.

    References and comparisons run on the CPU: a GPU that is wrong must not be its own judge.
    """

    def __init__(self, kernel: KernelUnderTest, device: torch.device, seed: int) -> None:
        self.kernel = kernel
        self.device = device
        self.seed = seed
        self._cases: list[Case] | None = None
        self._judged: dict[int, _Judged] = {}

    def cases(self, *kinds: Kind) -> list[Case]:
        """The cases of these kinds, or all of them. Raises DoesNotApply when there are none."""
        if self._cases is None:
            self._cases = list(self.kernel.cases(self.seed, self.device))
        chosen = [case for case in self._cases if not kinds or case.kind in kinds]
        if not chosen:
            raise DoesNotApply(f"the kernel names no {' or '.join(kinds)} cases")
        return chosen

    def generator(self, salt: int = 0) -> torch.Generator:
        """A generator on the CPU that depends on the seed and `salt` only."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + salt)

    def expected(self, inputs: Inputs) -> Mapping[str, Expected]:
        """What the reference makes of the inputs, on the CPU; asked once for each set of inputs."""
        return self._judge(inputs).expected

    def defined(self, inputs: Inputs) -> dict[str, torch.Tensor | None]:
        return {name: entry.defined for name, entry in self.expected(inputs).items()}

    def run(self, inputs: Inputs, buffers: Buffers | None = None) -> Outputs:
        """Copies of the kernel's results on the CPU; an asynchronous fault surfaces here and not in a later check."""
        outputs = clones(self.kernel.run(inputs, buffers))
        self.synchronize()
        return _on_cpu(outputs)

    def call(self, inputs: Inputs, buffers: Buffers | None = None) -> Outputs:
        """The kernel's results where it left them."""
        outputs = self.kernel.run(inputs, buffers)
        self.synchronize()
        return outputs

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def buffers(self, inputs: Inputs) -> Buffers | None:
        return None if self.kernel.buffers is None else self.kernel.buffers(inputs)

    def require_right(self, where: str, inputs: Inputs, outputs: Outputs) -> None:
        """Results must agree with the reference."""
        judged = self._judge(inputs)
        if problem := verdict(self.kernel, judged.host_inputs, _on_cpu(outputs), judged.expected):
            raise CheckFailed(f"{where}: {problem}")

    def require_same(
        self, where: str, actual: Outputs, expected: Outputs, inputs: Inputs, rows: Sequence[int] | None = None
    ) -> None:
        """Results must be equal bit by bit wherever the reference defines them; `rows` of `inputs`, or all of them."""
        defined = self.defined(inputs)
        if rows is not None:
            defined = {name: None if mask is None else mask[rows] for name, mask in defined.items()}
        if problem := differing(_on_cpu(actual), _on_cpu(expected), defined):
            raise CheckFailed(f"{where}: {problem}")

    def _judge(self, inputs: Inputs) -> _Judged:
        known = self._judged.get(id(inputs))
        if known is None or known.inputs is not inputs:
            host = on_host(inputs)
            expected = {name: _expected_on_cpu(entry) for name, entry in self.kernel.reference(host).items()}
            known = _Judged(inputs, host, expected)
            self._judged[id(inputs)] = known
        return known


@dataclass(frozen=True, slots=True)
class _Judged:
    """Inputs, the same on the CPU, and what the reference makes of them."""

    inputs: Inputs
    host_inputs: Inputs
    expected: Mapping[str, Expected]


def on_host(inputs: Inputs) -> Inputs:
    """The inputs on the CPU, unless they are too large to be copied."""
    tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return inputs
    if sum(tensor.untyped_storage().nbytes() for tensor in tensors) > _HOST_LIMIT_BYTES:
        return inputs
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def _on_cpu(outputs: Outputs) -> Outputs:
    return {name: tensor.cpu() for name, tensor in outputs.items()}


def _expected_on_cpu(entry: Expected) -> Expected:
    magnitude = None if entry.magnitude is None else entry.magnitude.cpu()
    defined = None if entry.defined is None else entry.defined.cpu()
    return Expected(entry.value.cpu(), magnitude, defined)


def always(kernel: KernelUnderTest) -> str | None:
    return None


def nothing(kernel: KernelUnderTest, device: torch.device) -> str | None:
    return None


def cuda(kernel: KernelUnderTest, device: torch.device) -> str | None:
    return None if device.type == "cuda" else NEEDS_CUDA


def recorder(kernel: KernelUnderTest, device: torch.device) -> str | None:
    """A GPU, or a kernel whose work the tape sees."""
    return None if device.type == "cuda" or kernel.operators_only else NEEDS_CUDA
