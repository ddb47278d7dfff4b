"""Whose time it was: a sweep over all activities of a GPU, streams together.

Kernels on several streams overlap, so the sum of their durations is more than the time that passed. Here every moment
is shared out equally among the groups that have work running in it, and belongs to the gaps when none has: the shares
of all groups and the gaps add up to 1. The plain sums are kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# boundaries swept at a time; a row of counts for each of them is what takes memory
_CHUNK: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Attribution:
    """Microseconds by window and group: `attributed` as said above, `busy` the sum of durations within the window.

    `idle` is the time by window in which nothing ran.
    """

    attributed: Floats
    busy: Floats
    idle: Floats


def attribute(starts: Floats, ends: Floats, groups: NDArray[np.intp], group_count: int, edges: Floats) -> Attribution:
    """Attribute the time between `edges`, of which each neighbouring pair bounds a window."""
    windows = len(edges) - 1
    inside = (ends > edges[0]) & (starts < edges[-1]) & (ends > starts)
    starts, ends, groups = starts[inside], ends[inside], groups[inside]
    # an edge is a boundary at which nothing begins or ends
    times = np.concatenate((starts, ends, edges))
    changes = np.repeat(np.array([1, -1, 0], dtype=np.int8), (len(starts), len(ends), len(edges)))
    owners = np.concatenate((groups, groups, np.zeros(len(edges), dtype=np.intp))).astype(np.uint8)
    order = np.argsort(times, kind="stable")
    times, changes, owners = times[order], changes[order], owners[order]
    del order

    attributed = np.zeros((windows, group_count))
    busy = np.zeros((windows, group_count))
    idle = np.zeros(windows)
    running = np.zeros(group_count, dtype=np.int32)
    for begin in range(0, len(times) - 1, _CHUNK):
        end = min(begin + _CHUNK, len(times) - 1)
        rows = np.arange(end - begin)
        counts = np.zeros((end - begin, group_count), dtype=np.int32)
        counts[rows, owners[begin:end]] = changes[begin:end]
        counts = running + np.cumsum(counts, axis=0, dtype=np.int32)
        running = counts[-1]
        lengths = np.diff(times[begin : end + 1])
        window = np.searchsorted(edges, times[begin:end], side="right") - 1
        valid = (window >= 0) & (window < windows) & (lengths > 0)
        counts, lengths, window = counts[valid], lengths[valid], window[valid]
        is_running = counts > 0
        sharers = is_running.sum(axis=1)
        idle += np.bincount(window, weights=lengths * (sharers == 0), minlength=windows)
        part = lengths / np.maximum(sharers, 1)
        for group in range(group_count):
            attributed[:, group] += np.bincount(window, weights=part * is_running[:, group], minlength=windows)
            busy[:, group] += np.bincount(window, weights=lengths * counts[:, group], minlength=windows)
    return Attribution(attributed, busy, idle)
