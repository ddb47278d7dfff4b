"""What a kernel may read and must write."""

from __future__ import annotations

import torch

from pdwatch.kernels.harness.checks.base import Check, CheckFailed, Subject, always, nothing
from pdwatch.kernels.harness.compare import bits
from pdwatch.kernels.harness.kernel import Inputs, KernelUnderTest, Promise
from pdwatch.kernels.harness.memory import (
    HUGE_BYTE,
    NAN_BYTE,
    PLAIN_BYTE,
    changed_inputs,
    fill_bytes,
    guard_buffers,
    guard_inputs,
    poisoned,
    snapshot,
    tensors_in,
)


def poison(subject: Subject) -> None:
    """NaN, -1 and huge numbers in every byte that must not matter change no bit of the results.

    Integers hold a legal but wrong value first: it betrays a kernel that reads them without making the device fault.
    """
    for case in subject.cases():
        clean = subject.run(case.inputs)
        patterns = [("NaN", NAN_BYTE, True), ("NaN and -1", NAN_BYTE, False), ("huge numbers", HUGE_BYTE, False)]
        for words, fill, decoys in patterns:
            outputs = subject.run(poisoned(case, fill, decoys))
            where = f"case `{case.name}` with {words} in what must not be read"
            if subject.kernel.promises_to_be(Promise.DETERMINISTIC):
                subject.require_same(where, outputs, clean, case.inputs)
            else:
                subject.require_right(where, case.inputs, outputs)


def inputs_untouched(subject: Subject) -> None:
    for case in subject.cases():
        inputs = guard_inputs(case.inputs)
        before = snapshot(inputs)
        subject.run(inputs)
        if changed := changed_inputs(inputs, before):
            raise CheckFailed(f"case `{case.name}`: the kernel wrote to its input `{changed[0]}`")


def outputs_written(subject: Subject) -> None:
    """Every element that the reference defines is written, whatever it held; nothing beside the outputs is."""
    for case in subject.cases():
        runs = []
        for fill in (NAN_BYTE, PLAIN_BYTE):
            made = subject.buffers(case.inputs)
            assert made is not None
            buffers, guards = guard_buffers(made, fill, None)
            results = subject.run(case.inputs, buffers)
            runs.append(results)
            for name, guarded in guards.items():
                if guarded.overrun():
                    raise CheckFailed(f"case `{case.name}`: the kernel wrote outside its output `{name}`")
                if name in results:
                    _untouched(subject, case.name, case.inputs, name, guarded.tensor, fill)
        where = f"case `{case.name}`: an element keeps what its buffer held before the run"
        subject.require_same(where, runs[1], runs[0], case.inputs)
        subject.require_right(f"case `{case.name}` with buffers", case.inputs, runs[0])


def _untouched(subject: Subject, case: str, inputs: Inputs, name: str, result: torch.Tensor, fill: int) -> None:
    defined = subject.defined(inputs).get(name)
    if defined is None or not subject.kernel.promises_to_be(Promise.UNDEFINED_UNTOUCHED):
        return
    before = result.clone()
    fill_bytes(before, fill)
    if bool((~defined.to(result.device).reshape(result.shape) & (bits(before) != bits(result))).any()):
        raise CheckFailed(f"case `{case}`: the kernel wrote elements of `{name}` that it promises to leave alone")


def buffers(subject: Subject) -> None:
    """Results lie in the buffers given, and are the same as without."""
    for case in subject.cases():
        given = subject.buffers(case.inputs)
        assert given is not None
        results = subject.call(case.inputs, given)
        for name, tensor in results.items():
            if name in given.outputs and tensor.untyped_storage().data_ptr() != _address(given.outputs[name]):
                raise CheckFailed(f"case `{case.name}`: `{name}` does not lie in the buffer that was given")
        where = f"case `{case.name}`: results in given buffers and in the kernel's own"
        if subject.kernel.promises_to_be(Promise.DETERMINISTIC):
            subject.require_same(where, results, subject.run(case.inputs), case.inputs)
        else:
            subject.require_right(where, case.inputs, results)


def workspace(subject: Subject) -> None:
    """What an earlier run, or anybody, left in the workspace does not matter."""
    cases = subject.cases()
    for case in cases:
        given = subject.buffers(case.inputs)
        assert given is not None
        first = subject.run(case.inputs, given)
        again = subject.run(case.inputs, given)
        where = f"case `{case.name}`"
        _agree(subject, f"{where}: a second run with the same workspace", again, first, case.inputs)
        if not subject.kernel.promises_to_be(Promise.ANY_WORKSPACE):
            continue
        for words, fill in (("NaN", NAN_BYTE), ("huge numbers", HUGE_BYTE)):
            for tensor in tensors_in(given.workspace):
                fill_bytes(tensor, fill)
            outputs = subject.run(case.inputs, given)
            _agree(subject, f"{where}: a workspace full of {words}", outputs, first, case.inputs)


def kept(subject: Subject) -> None:
    """Results handed out survive the next run; equal tensors with new values give new results."""
    cases = subject.cases()
    for case, following in zip(cases, [*cases[1:], cases[0]], strict=True):
        results = subject.call(case.inputs)
        before = {name: tensor.clone() for name, tensor in results.items()}
        subject.call(following.inputs)
        subject.require_same(f"case `{case.name}`: results after the next run", results, before, case.inputs)
    for case in cases:
        inputs = guard_inputs(case.inputs)
        subject.run(inputs)
        first = next((name for name, value in inputs.items() if _is_data(subject.kernel, name, value)), None)
        if first is None:
            continue
        inputs[first].mul_(-1)
        outputs = subject.run(inputs)
        subject.require_right(f"case `{case.name}` after `{first}` was changed in place", dict(inputs), outputs)


def _is_data(kernel: KernelUnderTest, name: str, value: object) -> bool:
    # the first batched floating-point input; fp8 has no arithmetic
    return (
        name in kernel.batched
        and isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.element_size() > 1
    )


def _agree(
    subject: Subject, where: str, actual: dict[str, torch.Tensor], first: dict[str, torch.Tensor], inputs: Inputs
) -> None:
    if subject.kernel.promises_to_be(Promise.DETERMINISTIC):
        subject.require_same(where, actual, first, inputs)
    else:
        subject.require_right(where, inputs, actual)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def takes_buffers(kernel: KernelUnderTest) -> str | None:
    return None if kernel.buffers is not None else "the kernel takes no buffers"


CHECKS = (
    Check(
        "poison",
        "B11, B12, B16, B17: reads of page tails, unused pages, scale bytes, table tails, padded rows, neighbours",
        poison,
        always,
        nothing,
    ),
    Check("inputs_untouched", "a kernel that writes to its inputs or beside them", inputs_untouched, always, nothing),
    Check(
        "outputs_written",
        "B8: elements never written, writes beyond an output, writes to what must stay",
        outputs_written,
        takes_buffers,
        nothing,
    ),
    Check("buffers", "B8: given buffers ignored, or filled with other results", buffers, takes_buffers, nothing),
    Check("workspace", "B5, B8, B10: scratch that is not cleared, or only once", workspace, takes_buffers, nothing),
    Check("kept", "B6, B8: results that the next run overwrites, results cached by address", kept, always, nothing),
)
