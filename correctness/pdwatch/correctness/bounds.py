"""Exact binomial bounds: what a number of clean or failed requests lets one say about the rate.

Clopper–Pearson (1934): with k failures in n trials the upper bound at confidence c is the rate at which seeing k or
fewer has probability 1 − c, that is Beta⁻¹(c; k + 1, n − k); the lower bound is Beta⁻¹(1 − c; k, n − k + 1).
For k = 0 the upper bound is 1 − (1 − c)^(1/n), about 3/n at 95 %.
"""

from __future__ import annotations

from typing import NamedTuple

from scipy.special import betaincinv

from pdwatch.correctness.errors import BoundsError

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A range of rates, both ends between 0 and 1."""

    lower: float
    upper: float


def upper_bound(failures: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided upper bound of the failure rate; 1.0 when nothing was tried. Raises BoundsError."""
    _check(failures, trials, confidence)
    if failures == trials:
        return 1.0
    return float(betaincinv(failures + 1, trials - failures, confidence))


def lower_bound(failures: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided lower bound of the failure rate; 0.0 when nothing failed. Raises BoundsError."""
    _check(failures, trials, confidence)
    if failures == 0:
        return 0.0
    return float(betaincinv(failures, trials - failures + 1, 1 - confidence))


def clopper_pearson(failures: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Two-sided interval: each side errs with probability (1 − confidence)/2 at most. Raises BoundsError."""
    side = (1 + confidence) / 2
    return Interval(lower_bound(failures, trials, side), upper_bound(failures, trials, side))


def requests_needed(rate: float, confidence: float = CONFIDENCE, failures: int = 0) -> int:
    """Fewest requests whose one-sided upper bound is at most `rate` when `failures` of them fail.

    Raises BoundsError.
    """
    if not 0 < rate < 1:
        raise BoundsError(f"rate {rate!r} cannot be bounded: use a number between 0 and 1, such as 0.001")
    _check(failures, failures + 1, confidence)
    few, enough = failures, failures + 1
    while upper_bound(failures, enough, confidence) > rate:
        few, enough = enough, enough * 2
    while few + 1 < enough:
        middle = (few + enough) // 2
        if upper_bound(failures, middle, confidence) > rate:
            few = middle
        else:
            enough = middle
    return enough


def statement(failures: int, trials: int, confidence: float = CONFIDENCE) -> str:
    """The count and its one-sided bound in words: `0 of 300: rate below 0.994 % at 95 %`."""
    if trials == 0:
        return "0 of 0: nothing scored, so nothing can be said"
    bound = upper_bound(failures, trials, confidence)
    return f"{failures} of {trials}: rate below {_percent(bound)} at {confidence * 100:g} %"


def _percent(rate: float) -> str:
    return f"{float(f'{rate * 100:.3g}'):g} %"


def _check(failures: int, trials: int, confidence: float) -> None:
    if trials < 0 or not 0 <= failures <= trials:
        raise BoundsError(f"{failures} failures in {trials} trials: failures must lie between 0 and the trials")
    if not 0 < confidence < 1:
        raise BoundsError(f"confidence {confidence!r} is not between 0 and 1: use 0.95, say")
