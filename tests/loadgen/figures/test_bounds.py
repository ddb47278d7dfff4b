"""Shares of requests and how sure they are."""

from __future__ import annotations

from random import Random

import pytest
from scipy import stats

from pdwatch.loadgen.bounds import ShareEstimate, estimate_share, student


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 19])
@pytest.mark.parametrize(("confidence", "error"), [(0.95, 0.001), (0.999, 0.03)])
def test_student(degrees: int, confidence: float, error: float) -> None:
    assert student(confidence, degrees) == pytest.approx(float(stats.t.ppf(confidence, degrees)), rel=error)


GOOD, BAD = 0.5, 2.0


def test_all_good() -> None:
    # 20 blocks, t = 1.7291; Wilson with share 1: n / (n + t²) = 100 / (100 + 2.9899) = 0.9710
    estimate = estimate_share([GOOD] * 100, in_flight=5)
    assert (estimate.share, estimate.effective_trials, estimate.blocks) == (1.0, 100, 20)
    assert estimate.lower(0.95) == pytest.approx(0.9710, abs=1e-4)
    assert estimate.upper(0.95) == pytest.approx(1.0)


def test_nothing_sent() -> None:
    estimate = estimate_share([], in_flight=4)
    assert (estimate.share, estimate.lower(0.95), estimate.upper(0.95)) == (None, 0.0, 1.0)


def test_requests_that_fail_together_count_for_less() -> None:
    spread = estimate_share([GOOD, GOOD, GOOD, GOOD, BAD] * 40, in_flight=8)
    together = estimate_share([GOOD] * 160 + [BAD] * 40, in_flight=8)
    assert spread.share == together.share == 0.8
    assert spread.effective_trials == 200
    # 20 blocks of ten, all good or all bad: variance 0.16 · 20/19 of their shares, by chance 0.16 · 200/199 / 10
    assert together.effective_trials == pytest.approx(200 / (20 / 19 / (200 / 199 / 10)))
    assert together.lower(0.95) < spread.lower(0.95) < 0.8 < spread.upper(0.95) < together.upper(0.95)


def test_slow_moments_show_where_all_are_good() -> None:
    calm = estimate_share([0.6, 0.7, 0.8, 0.9] * 50, in_flight=10)
    rough = estimate_share(([0.1] * 10 + [0.9] * 10) * 10, in_flight=10)
    assert calm.share == rough.share == 1.0
    assert calm.effective_trials == 200
    assert rough.effective_trials < 25
    assert rough.lower(0.95) < calm.lower(0.95)
    # far from the limit they do no harm
    assert estimate_share(([0.1] * 10 + [0.4] * 10) * 10, in_flight=10).effective_trials == 200


@pytest.mark.parametrize(("in_flight", "blocks"), [(1, 20), (10, 20), (64, 3), (150, 1), (500, 0)])
def test_a_block_is_as_long_as_what_ran_together(in_flight: float, blocks: int) -> None:
    estimate = estimate_share([GOOD, BAD] * 100, in_flight)
    assert estimate.blocks == blocks
    if blocks < 2:
        assert (estimate.lower(0.95), estimate.upper(0.95)) == (0.0, 1.0)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("run_length", [1, 4, 10])
def test_bounds_hold_as_often_as_they_say(share: float, run_length: int) -> None:
    """Runs of `run_length` requests fare alike; either bound is on the wrong side in 5 % of samples at most."""
    source = Random(f"{share}/{run_length}")
    too_high = too_low = 0
    for _ in range(1000):
        runs = [source.random() / share for _ in range(400 // run_length)]
        estimate = estimate_share([margin for margin in runs for _ in range(run_length)], in_flight=run_length)
        too_high += estimate.lower(0.95) > share
        too_low += estimate.upper(0.95) < share
    # 50 expected, with a standard deviation of 7
    assert too_high <= 70
    assert too_low <= 70


def test_a_bound_is_inside_the_unit_interval() -> None:
    estimate = ShareEstimate(1, 2, 1.0, 2)
    assert 0 <= estimate.lower(0.99) <= 0.5 <= estimate.upper(0.99) <= 1
