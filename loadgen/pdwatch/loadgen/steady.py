"""The part of a phase in which nothing but chance changes, found from its requests.

1. The measured part is cut into bins. With a fixed number of users, the longest run of bins whose mean in-flight
   is at least 0.9 of that number remains: ramp-up, starvation and drain are outside.
2. MSER-5 on the logarithm of TTFT, in order of sending, cuts off what is left of the beginning: of all ways to drop
   batches of five from the front, the one that leaves the smallest standard error. The logarithm keeps one slow
   request at the front from being mistaken for a transient. What differs from the rest by less than a tenth stays: it
   matters to nobody. A series that is best cut beyond its middle has not settled, if its halves differ by a quarter.
3. What remains is steady unless it drifts: batch means of TTFT (in open loop also the mean of those outstanding) that
   rise or fall by a rank test at |z| > 3.29 (p = 0.001) and by more than a quarter between its halves.

In open loop a request counts from the time at which it was due: one that waits in the client for leave to be sent is
outstanding, and its TTFT includes the wait. The window ends with the last one due: what follows is the queue's drain.
Outstanding requests that drift to more than twice as many say more than unsteadiness: the rate is above what is served.
Before the first requests have ended their number must rise, and is not looked at.

Latency and throughput are taken from the same window, whatever its method.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final, Literal

from .load import ClosedLoad, Load, OpenLoad, RampLoad
from .row import RequestRow
from .transcript import Outcome

IN_FLIGHT_SHARE: Final = 0.9
LEAST_SHARE_OF_MEASURED: Final = 0.5

_BINS: Final = 100
_SHORTEST_BIN_SECONDS: Final = 0.1
_BATCH: Final = 5
_FEWEST_BATCHES: Final = 8
# neighbours in time are alike, which a rank test takes for a trend: few and long means are not.
_TREND_BINS: Final = 20
_DRIFT_Z: Final = 3.29
_DRIFT_RATIO: Final = 1.25
_TRANSIENT_RATIO: Final = 1.1
_FILLING: Final = 1.5
# a queue that nothing drains is three times as long in the second half; one that wanders rarely twice.
_GROWTH_RATIO: Final = 2.0

Method = Literal["steady", "truncated", "whole", "none"]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a phase that figures are taken from; `detail` says in a line how it was found.

    Methods: `truncated`, found as above; `steady`, the same with too few first tokens for MSER-5; `whole`, the measured
    part by intent, of a load that is not meant to be steady; `none`, the measured part because nothing in it is steady.
    Of an open loop: `is_growing`, ever more requests were outstanding; `growth_z`, the rank correlation of their number
    with time as a normal deviate, None of too few requests.
    """

    starts_seconds: float
    ends_seconds: float
    method: Method
    detail: str = ""
    is_growing: bool = False
    growth_z: float | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ends_seconds - self.starts_seconds

    @property
    def is_steady(self) -> bool:
        """Whether a steady state was found in it."""
        return self.method in ("steady", "truncated")


def whole_window(starts_seconds: float, ends_seconds: float, reason: str) -> Window:
    """The measured part of a load that is not meant to be steady: waves, a replay."""
    return Window(starts_seconds, ends_seconds, "whole", reason)


def phase_window(
    load: Load, users: int, rows: Sequence[RequestRow], starts_seconds: float, ends_seconds: float
) -> Window:
    """The window of a phase's measured part, as its load has one; `users` are those of its closed loop or its ramp."""
    if isinstance(load, OpenLoad):
        return steady_window(rows, None, starts_seconds, ends_seconds)
    if isinstance(load, ClosedLoad | RampLoad):
        return steady_window(rows, users, starts_seconds, ends_seconds)
    return whole_window(starts_seconds, ends_seconds, f"{load.kind}: not meant to be steady")


def steady_window(
    rows: Sequence[RequestRow], intended: float | None, starts_seconds: float, ends_seconds: float
) -> Window:
    """The steady window inside the measured part from `starts_seconds` to `ends_seconds`.

    `rows` are all requests of the phase, warm-up and cool-down included; `intended` is the number of users in closed
    loop, None in open loop.
    """
    if intended is None:
        return _open_window(rows, starts_seconds, ends_seconds)
    starts, ends, share = _longest_filled(rows, IN_FLIGHT_SHARE * intended, starts_seconds, ends_seconds)
    note = f"in flight ≥ {IN_FLIGHT_SHARE:g} × {intended:g} for {100 * share:.0f} % of the measured part"
    if share < LEAST_SHARE_OF_MEASURED:
        return Window(starts_seconds, ends_seconds, "none", f"{note} at a stretch")
    complete = _complete(rows, starts, ends)
    if not complete:
        return Window(starts_seconds, ends_seconds, "none", f"{note}, and no request sent in that time was answered")
    timed = [
        (row.sent_seconds, row.time_to_first_token_seconds)
        for row in complete
        if row.time_to_first_token_seconds is not None
    ]
    settled = _settled(timed, starts)
    if isinstance(settled, str):
        return Window(starts_seconds, ends_seconds, "none", settled)
    return Window(settled.starts_seconds, ends, settled.method, f"{note}; {settled.detail}")


def _open_window(rows: Sequence[RequestRow], starts_seconds: float, ends_seconds: float) -> Window:
    ends = ends_seconds
    due = [row.due_seconds for row in rows if starts_seconds <= row.due_seconds < ends_seconds]
    if len(due) >= _FEWEST_BATCHES * _BATCH:
        # the next number is the least that still has the last of them inside.
        ends = min(ends, math.nextafter(max(due), math.inf))
    timed = [
        (row.due_seconds, seconds + row.due_lag_seconds)
        for row in _complete(rows, starts_seconds, ends)
        if (seconds := row.time_to_first_token_seconds) is not None
    ]
    filled = _filled_seconds(rows)
    if len(due) >= _FEWEST_BATCHES * _BATCH and filled > (starts_seconds + ends) / 2:
        return Window(starts_seconds, ends, "none", "requests take longer than half of the measured part")
    trend = _outstanding_trend(rows, max(filled, starts_seconds), ends)
    growth_z = _rank_z(trend) if trend else None
    outstanding = _drift(_logarithms(trend))
    settled = _settled(timed, starts_seconds)
    if outstanding:
        detail = f"outstanding requests drift: {_shown(outstanding)}"
        return Window(starts_seconds, ends, "none", detail, outstanding > _GROWTH_RATIO, growth_z)
    if isinstance(settled, str):
        return Window(starts_seconds, ends, "none", settled, growth_z=growth_z)
    return Window(settled.starts_seconds, ends, settled.method, settled.detail, growth_z=growth_z)


@dataclass(frozen=True, slots=True)
class _Settled:
    starts_seconds: float
    method: Method
    detail: str


def _settled(timed: Sequence[tuple[float, float]], starts_seconds: float) -> _Settled | str:
    """From when on the TTFT of (time, TTFT), in order, only scatters; why nobody can tell, if it always drifts."""
    batches = _batch_means(_logarithms(seconds for _, seconds in timed))
    if len(batches) < _FEWEST_BATCHES:
        return _Settled(starts_seconds, "steady", f"too few first tokens ({len(timed)}) to look for a transient")
    dropped = mser(batches)
    if dropped is None and _has_moved(median(batches[: len(batches) // 2]), median(batches[-(len(batches) // 2) :])):
        return "TTFT had not settled by half of the measured part"
    if not dropped or abs(fmean(batches[:dropped]) - fmean(batches[dropped:])) < math.log(_TRANSIENT_RATIO):
        dropped = 0
    if drift := _drift(_coarse(batches[dropped:])):
        return f"TTFT drifts: {_shown(drift)}"
    starts = timed[dropped * _BATCH][0] if dropped else starts_seconds
    return _Settled(starts, "truncated", f"MSER-5 on log TTFT dropped {dropped * _BATCH} of {len(timed)}")


def _complete(rows: Sequence[RequestRow], starts: float, ends: float) -> list[RequestRow]:
    """Complete requests that were due inside, in that order."""
    inside = (row for row in rows if row.outcome is Outcome.COMPLETE and starts <= row.due_seconds < ends)
    return sorted(inside, key=lambda row: row.due_seconds)


def in_flight_mean(rows: Sequence[RequestRow], starts_seconds: float, ends_seconds: float) -> float | None:
    """Mean over time of the requests in flight; None for a window without length."""
    if ends_seconds <= starts_seconds:
        return None
    overlap = math.fsum(
        max(0.0, min(row.ended_seconds, ends_seconds) - max(row.sent_seconds, starts_seconds)) for row in rows
    )
    return overlap / (ends_seconds - starts_seconds)


def mser(batches: Sequence[float]) -> int | None:
    """How many batch means to drop from the front: the d ≤ n/2 with the least Σ(x − mean)² / (n − d)², over the rest.

    None when that is at the border, which means that the series has not settled.
    """
    count = len(batches)
    # sums over the last k batches, about the middle of all of them lest digits be lost.
    middle = fmean(batches)
    centred = [value - middle for value in reversed(batches)]
    sums = list(accumulate(centred))
    squares = list(accumulate(value * value for value in centred))

    def error(dropped: int) -> float:
        kept = count - dropped
        return (squares[kept - 1] - sums[kept - 1] ** 2 / kept) / kept**2

    border = count // 2
    dropped = min(range(border + 1), key=error)
    return None if dropped == border else dropped


def _longest_filled(rows: Sequence[RequestRow], least: float, starts: float, ends: float) -> tuple[float, float, float]:
    """The longest run of bins with a mean in-flight of `least`, and its share of the whole."""
    begun = [row.sent_seconds for row in rows]
    means = _bin_means(rows, begun, starts, ends, min(_BINS, int((ends - starts) / _SHORTEST_BIN_SECONDS)))
    if not means:
        return starts, ends, 0.0
    width = (ends - starts) / len(means)
    best_start = best_end = start = 0
    for index, mean in enumerate(means):
        if mean < least:
            start = index + 1
        elif index + 1 - start > best_end - best_start:
            best_start, best_end = start, index + 1
    share = (best_end - best_start) / len(means)
    return starts + best_start * width, ends if best_end == len(means) else starts + best_end * width, share


def _filled_seconds(rows: Sequence[RequestRow]) -> float:
    """When as many requests run together as they take time, by the first of them; before, their number must rise."""
    first = sorted(rows, key=lambda row: row.due_seconds)[: max(_BATCH, len(rows) // _TREND_BINS)]
    if not first:
        return -math.inf
    return first[0].due_seconds + _FILLING * median([row.ended_seconds - row.due_seconds for row in first])


def _outstanding_trend(rows: Sequence[RequestRow], starts: float, ends: float) -> list[float]:
    """Mean number of requests due and not ended, in each of so many bins; none when there are few requests."""
    if len(rows) < _FEWEST_BATCHES * _BATCH:
        return []
    return _bin_means(rows, [row.due_seconds for row in rows], starts, ends, _TREND_BINS)


def _bin_means(
    rows: Sequence[RequestRow], begun: Sequence[float], starts: float, ends: float, bins: int
) -> list[float]:
    """Mean number of requests between their beginnings and their ends, in each of so many bins, of one at least."""
    if ends <= starts:
        return []
    bins = max(1, bins)
    width = (ends - starts) / bins
    first = _Clock([seconds - starts for seconds in begun])
    ended = _Clock([row.ended_seconds - starts for row in rows])
    # the integral up to an edge: time since every beginning by then, minus time since every end.
    until = [first.passed_seconds(width * index) - ended.passed_seconds(width * index) for index in range(bins + 1)]
    return [(later - earlier) / width for earlier, later in pairwise(until)]


class _Clock:
    """Sum over all moments of the time that has passed since, as a function of now."""

    def __init__(self, moments: list[float]) -> None:
        self._moments = sorted(moments)
        self._sums = [0.0, *accumulate(self._moments)]

    def passed_seconds(self, now: float) -> float:
        count = bisect_right(self._moments, now)
        return count * now - self._sums[count]


def _logarithms(values: Iterable[float]) -> list[float]:
    # 0 has none; one part in a thousand million is as good as it.
    return [math.log(max(value, 1e-9)) for value in values]


def _batch_means(values: Sequence[float]) -> list[float]:
    return [fmean(values[start : start + _BATCH]) for start in range(0, len(values) - _BATCH + 1, _BATCH)]


def _coarse(values: Sequence[float]) -> list[float]:
    """The values as `_TREND_BINS` means of neighbours, when there are more."""
    count = min(_TREND_BINS, len(values))
    edges = [len(values) * index // count for index in range(count + 1)]
    return [fmean(values[start:end]) for start, end in pairwise(edges)]


def _drift(logarithms: Sequence[float]) -> float:
    """How many times the values grow from their first half to their second, if they drift; else 0."""
    if len(logarithms) < _FEWEST_BATCHES:
        return 0.0
    half = len(logarithms) // 2
    first, second = median(logarithms[:half]), median(logarithms[-half:])
    if not _has_moved(first, second) or abs(_rank_z(logarithms)) <= _DRIFT_Z:
        return 0.0
    return math.exp(second - first)


def _shown(drift: float) -> str:
    return f"×{drift:.2f} from its first half to its second"


def _has_moved(first: float, second: float) -> bool:
    """Whether two logarithms are more than `_DRIFT_RATIO` apart."""
    return abs(second - first) > math.log(_DRIFT_RATIO)


def _rank_z(values: Sequence[float]) -> float:
    """Spearman's rank correlation with time, as a normal deviate."""
    count = len(values)
    ranks = [0] * count
    for rank, index in enumerate(sorted(range(count), key=values.__getitem__)):
        ranks[index] = rank
    distance = sum((rank - index) ** 2 for index, rank in enumerate(ranks))
    return (1 - 6 * distance / (count * (count**2 - 1))) * math.sqrt(count - 1)
