"""The step law of a decode worker, and the batch that each answer was decoded in.

A decode step takes a fixed time and some more for each request in the batch, so TPOT depends on the batch, and the
batch depends on how fast prompts came through in those seconds. To compare builds and not moments, TPOT is taken
relative to what the baseline's step law gives at the same batch:

    step(batch) = fixed + per_request * batch                      seconds

fitted to (batch, TPOT) of the baseline's requests by repeated medians (Siegel), which wild points hardly move. The
levels have to differ in batch: within one level slow seconds make large batches, not the other way round, and a law
read off that would explain a slow build away.

The batch is that of the whole arm: with several decode workers the law is that of all of them together.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy import stats

from pdwatch.gate.rows import RequestRow

# the fit looks at every pair of points.
MAXIMUM_POINTS = 1_000
FEWEST_POINTS = 20
# between the levels' median batches.
SMALLEST_SPREAD = 1.0


class Point(NamedTuple):
    """One request of the baseline: its level, its batch and its TPOT."""

    level: int
    batch: float
    seconds: float


class StepLaw(BaseModel):
    """Seconds of a decode step: `fixed_seconds` + `per_request_seconds` × batch, both positive.

    `largest_batch` is the largest that the baseline showed; beyond it nothing is known.
    """

    model_config = ConfigDict(frozen=True)

    fixed_seconds: float
    per_request_seconds: float
    largest_batch: float

    def expected_seconds(self, batch: float) -> float:
        """TPOT at this batch; one above all of the baseline's counts as the largest of them."""
        return self.fixed_seconds + self.per_request_seconds * min(batch, self.largest_batch)


def fit_step_law(points: Sequence[Point], seed: int) -> StepLaw | None:
    """The law through the points; None when they show none: too few, levels of one batch only, or no rise."""
    if len(points) > MAXIMUM_POINTS:
        points = random.Random(seed).sample(points, MAXIMUM_POINTS)
    if len(points) < FEWEST_POINTS:
        return None
    levels, batches, seconds = (np.asarray(column) for column in zip(*points, strict=True))
    medians = [float(np.median(batches[levels == level])) for level in np.unique(levels)]
    if max(medians) - min(medians) < SMALLEST_SPREAD:
        return None
    slope, intercept = (float(value) for value in stats.siegelslopes(seconds, batches))
    if slope <= 0 or intercept <= 0:
        return None
    return StepLaw(fixed_seconds=intercept, per_request_seconds=slope, largest_batch=float(batches.max()))


def decode_batches(rows: Iterable[RequestRow]) -> dict[str, float]:
    """By request id, the mean number of answers of its arm that were being decoded while it was, itself included.

    Counts every answer, warm-up and cool-down too; absent for a request without a first token or without duration.
    """
    arms: dict[str, list[tuple[str, float, float]]] = {}
    for row in rows:
        if row.first_token_seconds is not None and row.ended_seconds > row.first_token_seconds:
            arms.setdefault(row.arm, []).append((row.request_id, row.first_token_seconds, row.ended_seconds))
    batches: dict[str, float] = {}
    for spans in arms.values():
        begins = np.asarray([begin for _, begin, _ in spans])
        ends = np.asarray([end for _, _, end in spans])
        # the integral of "answers being decoded" up to a time is what began before it less what had ended.
        shared = _area(begins, ends) - _area(begins, begins) - _area(ends, ends) + _area(ends, begins)
        for (request_id, begin, end), seconds in zip(spans, shared, strict=True):
            batches[request_id] = float(seconds / (end - begin))
    return batches


def _area(changes: np.ndarray, times: np.ndarray) -> np.ndarray:
    """For each time the sum of max(0, time - change) over all changes."""
    ordered = np.sort(changes)
    passed = np.searchsorted(ordered, times, side="right")
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    return np.asarray(times * passed - sums[passed])
