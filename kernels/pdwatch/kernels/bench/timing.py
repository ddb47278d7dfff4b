"""Device time of captured calls, and the roofs of the device in the same minute."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

Call = Callable[[], object]
Timer = Callable[[Sequence[Call]], float]

REPEATS = 9
# the first replays still upload the graph
_WARM_UP = 2
# several times the L2 of any GPU so far
_FLUSH_ELEMENTS = 1 << 26
_ROOF_ELEMENTS = 1 << 28
_MATRIX = 8192


def microseconds(calls: Sequence[Call], repeats: int = REPEATS) -> float:
    """Median device time of one call: all calls captured in one CUDA graph, replayed `repeats` times.

    The calls should read different inputs: before each replay the L2 is filled with something else, so every input
    comes from memory once. Launches of neighbouring calls may overlap, as they do inside a captured step.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(repeats):
        # by reading: lines that must be written back would slow what comes after
        _filler().sum()
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[_WARM_UP:])


@dataclass(frozen=True, slots=True)
class Roof:
    """What the device reached in the same run: bytes a second copied (read plus written) and read, bf16 FLOP/s."""

    copy_bytes_per_second: float
    read_bytes_per_second: float
    matrix_flops_per_second: float

    def microseconds(self, least_bytes: int, operations: int) -> float:
        """The least time for so many bytes and operations, at copy bandwidth and bf16 rate."""
        return max(least_bytes / self.copy_bytes_per_second, operations / self.matrix_flops_per_second) * 1e6


def measure_roof() -> Roof:
    """Measures the roof of the current CUDA device; takes about 2 GiB."""
    copy, read = _bandwidths()
    left, right = (torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matrix = 2 * _MATRIX**3 / _fastest(partial(torch.matmul, left, right))
    torch.cuda.empty_cache()
    return Roof(copy_bytes_per_second=copy, read_bytes_per_second=read, matrix_flops_per_second=matrix)


def _bandwidths() -> tuple[float, float]:
    source = torch.randn(_ROOF_ELEMENTS, device="cuda")
    target = torch.empty_like(source)
    size = source.numel() * source.element_size()
    # a kernel: a copy captured in a graph is a node of its own kind, and slower
    copy = partial(torch.mul, source, 1.0, out=target)
    return 2 * size / _fastest(copy), size / _fastest(source.sum)


def _fastest(call: Call) -> float:
    """Seconds of a long call: the best of three medians, because the clocks rise only under load."""
    return min(microseconds([call] * 10) for _ in range(3)) / 1e6


@cache
def _filler() -> Tensor:
    return torch.zeros(_FLUSH_ELEMENTS, device="cuda")
