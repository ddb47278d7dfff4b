"""The part of a phase in which nothing but chance changes, found from its requests.

1. The measured part is cut into bins. With a fixed number of users, the longest run of bins whose mean in-flight
   is at least 0.9 of that number remains: ramp-up, starvation and drain are outside.
2. MSER-5 on the logarithm of TTFT, in order of sending, cuts off what is left of the beginning: of all ways to drop
   batches of five from the front, the one that leaves the smallest standard error. The logarithm keeps one slow
   request at the front from being mistaken for a transient. What differs from the rest by less than a tenth stays: it
   matters to nobody. A series that is best cut beyond its middle has not settled, if its halves differ by a quarter.
3. What remains is steady unless it drifts: batch means of TTFT (in open loop also the mean in-flight) that rise or
   fall by a rank test at |z| > 3.29 (p = 0.001) and by more than a quarter between its halves.

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

Method = Literal["steady", "truncated", "whole", "none"]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a phase that figures are taken from; `detail` says in a line how it was found.

    Methods: `truncated`, found as above; `steady`, the same with too few first tokens for MSER-5; `whole`, the measured
    part by intent, of a load that is not meant to be steady; `none`, the measured part because nothing in it is steady.
    """

    starts_seconds: float
    ends_seconds: float
    method: Method
    detail: str = ""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ends_seconds - self.starts_seconds

    @property
    def is_steady(self) -> bool:
        """Whether a steady state was found in it."""
        return self.method in ("steady", "truncated")


def whole_window(starts_seconds: float, ends_seconds: float, reason: str) -> Window:
    """The measured part of a load that is not meant to be steady: a ramp, waves, a replay."""
    return Window(starts_seconds, ends_seconds, "whole", reason)


def steady_window(
    rows: Sequence[RequestRow], intended: float | None, starts_seconds: float, ends_seconds: float
) -> Window:
    """The steady window inside the measured part from `starts_seconds` to `ends_seconds`.

    `rows` are all requests of the phase, warm-up and cool-down included; `intended` is the number of users in closed
    loop, None in open loop.
    """
    starts, ends = starts_seconds, ends_seconds
    note = ""
    if intended:
        starts, ends, share = _longest_filled(rows, IN_FLIGHT_SHARE * intended, starts, ends)
        note = f"in flight ≥ {IN_FLIGHT_SHARE:g} × {intended:g} for {100 * share:.0f} % of the measured part"
        if share < LEAST_SHARE_OF_MEASURED:
            return Window(starts_seconds, ends_seconds, "none", f"{note} at a stretch")
    timed = sorted(
        (row.sent_seconds, row.time_to_first_token_seconds)
        for row in rows
        if row.outcome is Outcome.COMPLETE
        and row.time_to_first_token_seconds is not None
        and starts <= row.sent_seconds < ends
    )
    batches = _batch_means(_logarithms(seconds for _, seconds in timed))
    if len(batches) < _FEWEST_BATCHES:
        note = f"{note}; too few first tokens ({len(timed)}) to look for a transient".removeprefix("; ")
        return Window(starts, ends, "steady", note)
    dropped = mser(batches)
    if dropped is None and _has_moved(median(batches[: len(batches) // 2]), median(batches[-(len(batches) // 2) :])):
        return Window(starts_seconds, ends_seconds, "none", "TTFT had not settled by half of the measured part")
    if not dropped or abs(fmean(batches[:dropped]) - fmean(batches[dropped:])) < math.log(_TRANSIENT_RATIO):
        dropped = 0
    if drift := _drift(_coarse(batches[dropped:])):
        return Window(starts_seconds, ends_seconds, "none", f"TTFT drifts: {drift}")
    if dropped:
        starts = timed[dropped * _BATCH][0]
    if not intended and (drift := _drift(_logarithms(_in_flight_trend(rows, starts, ends)))):
        return Window(starts_seconds, ends_seconds, "none", f"requests in flight drift: {drift}")
    note = f"{note}; MSER-5 on log TTFT dropped {dropped * _BATCH} of {len(timed)}".removeprefix("; ")
    return Window(starts, ends, "truncated", note)


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
    means = _bin_means(rows, starts, ends, min(_BINS, int((ends - starts) / _SHORTEST_BIN_SECONDS)))
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


def _in_flight_trend(rows: Sequence[RequestRow], starts: float, ends: float) -> list[float]:
    """Mean in-flight of bins long enough to know little of each other: twice the usual request."""
    shortest = 2 * median([row.ended_seconds - row.sent_seconds for row in rows])
    return _bin_means(rows, starts, ends, int(min(_TREND_BINS, (ends - starts) / max(shortest, 1e-9))))


def _bin_means(rows: Sequence[RequestRow], starts: float, ends: float, bins: int) -> list[float]:
    """Mean in-flight of each of so many bins, of one at least."""
    if ends <= starts:
        return []
    bins = max(1, bins)
    width = (ends - starts) / bins
    sent, ended = (
        _Clock([row.sent_seconds - starts for row in rows]),
        _Clock([row.ended_seconds - starts for row in rows]),
    )
    # the integral of in-flight up to an edge: time since every sending by then, minus time since every end.
    until = [sent.passed_seconds(width * index) - ended.passed_seconds(width * index) for index in range(bins + 1)]
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


def _drift(logarithms: Sequence[float]) -> str:
    """How the values rise or fall over time, in words; nothing when they do not."""
    if len(logarithms) < _FEWEST_BATCHES:
        return ""
    half = len(logarithms) // 2
    first, second = median(logarithms[:half]), median(logarithms[-half:])
    if not _has_moved(first, second) or abs(_rank_z(logarithms)) <= _DRIFT_Z:
        return ""
    return f"×{math.exp(second - first):.2f} from its first half to its second"


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
