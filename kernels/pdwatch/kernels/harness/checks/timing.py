"""Time follows the true lengths, whatever the configured maximum: needs a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import torch

from pdwatch.kernels.harness.checks.base import Check, CheckFailed, Subject, cuda
from pdwatch.kernels.harness.kernel import Buffers, Inputs, KernelUnderTest, Promise
from pdwatch.kernels.harness.recording import Graph

LENGTH = 2048
# the larger one is what V4's indexer has for a context of 1M tokens: a key for every four
MAXIMA = (4096, 1 << 18)
# the same work at the larger maximum may take this much longer: launch overhead and noise
_FLAT = 1.10
# and at least this much must be saved by a length of 1/64 of the maximum
_SLOPE = 0.5
_WARM_UP, _REPLAYS = 10, 40
_NOISE_MICROSECONDS = 0.5
# a graph of one launch is dominated by the replay itself
_LAUNCHES = 10


def slope_maximum(subject: Subject) -> None:
    """Flat in the configured maximum at a fixed length."""
    small, large = _microseconds(subject, [(LENGTH, maximum) for maximum in MAXIMA])
    if large > small * _FLAT + _NOISE_MICROSECONDS:
        raise CheckFailed(
            f"{LENGTH} keys take {small:.1f} us with a maximum of {MAXIMA[0]} and {large:.1f} us with {MAXIMA[1]}: "
            "the work follows the maximum"
        )


def slope_length(subject: Subject) -> None:
    """Grows with the length at a fixed maximum."""
    short, long = _microseconds(subject, [(length, MAXIMA[1]) for length in (MAXIMA[1] // 64, MAXIMA[1])])
    if short > long * _SLOPE:
        raise CheckFailed(
            f"{MAXIMA[1] // 64} keys take {short:.1f} us and {MAXIMA[1]} keys {long:.1f} us: the time does not follow "
            "the length"
        )


def _microseconds(subject: Subject, settings: Sequence[tuple[int, int]]) -> list[float]:
    """Median time of one run inside a replayed graph for each (length, maximum); replays alternate, so that drifting
    clocks touch all alike."""
    timing = subject.kernel.timing
    assert timing is not None
    graphs = []
    for length, maximum in settings:
        inputs = timing(length, maximum, subject.device)
        graphs.append(Graph(partial(_many, subject, inputs, subject.buffers(inputs))))
    times: list[list[float]] = [[] for _ in settings]
    for replay in range(_WARM_UP + _REPLAYS):
        for graph, measured in zip(graphs, times, strict=True):
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if replay >= _WARM_UP:
                measured.append(begin.elapsed_time(end) * 1e3 / _LAUNCHES)
    return [statistics.median(measured) for measured in times]


def _many(subject: Subject, inputs: Inputs, given: Buffers | None) -> dict[str, torch.Tensor]:
    outputs: dict[str, torch.Tensor] = {}
    for _ in range(_LAUNCHES):
        outputs = subject.kernel.run(inputs, given)
    return outputs


def _timed(kernel: KernelUnderTest) -> str | None:
    if not kernel.promises_to_be(Promise.WORK_BY_LENGTH):
        return "the kernel does not promise work by length"
    if not kernel.promises_to_be(Promise.CAPTURABLE):
        return "the kernel does not promise to be capturable"
    return None if kernel.timing is not None else "the kernel names no inputs for a length and a maximum"


CHECKS = (
    Check("slope_maximum", "B13: work over the configured maximum", slope_maximum, _timed, cuda, 1),
    Check("slope_length", "B10, B13: work that does not follow the length", slope_length, _timed, cuda, 1),
)
