"""Where a step begins.

1. SGLang's span around each forward pass (`step[DECODE bs=…]`), or torch.profiler's around each iteration, as it shows
   on the GPU: a step lasts from the first work of one span to that of the next.
2. Without spans, launches of CUDA graphs: a step lasts from the first kernel of one launch to that of the next.
   Engines that launch several graphs in a step are told how many.
3. Without either there are no steps: shares are of the whole trace, and nothing is said per step.

The work after a pass (sampling, copies) and the idle time before the next are in the step so. The last pass is not
counted, for nothing marks its end, nor is the first when there are others: the profiler itself starts up in it, which
took 0.2 s on an H200.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .activities import DeviceActivities, Mark

Boundary = Literal["span", "graph", "none"]


@dataclass(frozen=True, slots=True)
class Steps:
    """Times at which steps begin, and one more at which the last ends; microseconds, ascending.

    `counted` says which steps are of the stage that most are of; the others are in the trace but in no mean.
    """

    boundary: Boundary
    edges: tuple[float, ...]
    counted: tuple[bool, ...]
    stage: str
    mean_batch: float | None


def find_steps(device: DeviceActivities, graph_launches: set[int], graphs_per_step: int = 1) -> Steps:
    """The steps of one GPU."""
    marks = sorted(device.spans.values(), key=lambda mark: mark.microseconds)
    if len(marks) > 1:
        return _steps("span", marks)
    launches = _launches(device, graph_launches)[::graphs_per_step]
    if len(launches) > 1:
        return _steps("graph", [Mark(start, "graph", None) for start in launches])
    edges = (float(min(device.starts)), float(max(device.ends))) if len(device.starts) else (0.0, 0.0)
    return Steps("none", edges, (True,), "", None)


def _launches(device: DeviceActivities, graph_launches: set[int]) -> list[float]:
    """When the first kernel of each launch began."""
    correlations = np.asarray(device.correlations)
    starts = np.asarray(device.starts)
    chosen = np.isin(correlations, np.fromiter(graph_launches, dtype=np.int64, count=len(graph_launches)))
    first: dict[int, float] = {}
    for correlation, start in zip(correlations[chosen].tolist(), starts[chosen].tolist(), strict=True):
        first[correlation] = min(start, first.get(correlation, start))
    return sorted(first.values())


def _steps(boundary: Boundary, marks: Sequence[Mark]) -> Steps:
    marks = marks[1:] if len(marks) > 2 else marks
    begun = marks[:-1]
    stage = Counter(mark.stage for mark in begun).most_common(1)[0][0]
    counted = tuple(mark.stage == stage for mark in begun)
    batches = [mark.batch for mark in begun if mark.stage == stage and mark.batch is not None]
    mean_batch = sum(batches) / len(batches) if batches else None
    return Steps(boundary, tuple(mark.microseconds for mark in marks), counted, stage, mean_batch)
