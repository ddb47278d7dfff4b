"""Offsets past 2^31, and arguments that must be refused."""

from __future__ import annotations

import torch

from pdwatch.kernels.harness.checks.base import CannotRun, Check, CheckFailed, Subject, nothing
from pdwatch.kernels.harness.kernel import KernelUnderTest


def int64(subject: Subject) -> None:
    """Pages whose offsets pass 2^31 elements and bytes."""
    huge = subject.kernel.huge
    assert huge is not None
    case = huge(subject.seed, subject.device)
    if case is None:
        raise CannotRun("the pool of 2^31 elements does not fit into memory")
    outputs = subject.run(case.inputs)
    subject.require_right(f"case `{case.name}`", case.inputs, outputs)
    if subject.device.type == "cuda":
        del case
        torch.cuda.empty_cache()


def arguments(subject: Subject) -> None:
    """Wrong shapes, dtypes, strides and devices are refused by name, before anything is launched."""
    invalid = subject.kernel.invalid
    assert invalid is not None
    for words, inputs in invalid(subject.cases()[0].inputs):
        try:
            subject.run(inputs)
        except ValueError as error:
            if not str(error).strip():
                raise CheckFailed(f"{words}: refused without a word") from error
        except Exception as error:
            raise CheckFailed(f"{words}: {type(error).__name__} instead of a ValueError: {error}") from error
        else:
            raise CheckFailed(f"{words}: accepted")


def _has_huge(kernel: KernelUnderTest) -> str | None:
    return None if kernel.huge is not None else "the kernel names no case with offsets past 2^31"


def _has_invalid(kernel: KernelUnderTest) -> str | None:
    return None if kernel.invalid is not None else "the kernel names no arguments that it refuses"


def _fits(kernel: KernelUnderTest, device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return None if free > 24 << 30 else f"needs 24 GiB of free GPU memory, {free >> 30} GiB are free"


CHECKS = (
    Check("int64", "B14: int32 offsets", int64, _has_huge, _fits),
    Check("arguments", "B15, B17: unchecked strides, dtypes, layouts", arguments, _has_invalid, nothing),
)
