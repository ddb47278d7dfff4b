"""Bounds against the table of exact values, and the properties that make them bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtr

from pdwatch.correctness import (
    BoundsError,
    clopper_pearson,
    lower_bound,
    requests_needed,
    statement,
    upper_bound,
)

counts = st.integers(1, 5_000).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))
confidences = st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999])


@pytest.mark.parametrize(
    ("confidence", "needed"),
    [
        (0.95, (29, 59, 149, 299, 598, 1497, 2995, 5990, 9985, 29956)),
        (0.99, (44, 90, 228, 459, 919, 2301, 4603, 9209, 15349, 46050)),
    ],
    ids=["95 %", "99 %"],
)
def test_clean_requests_needed(confidence, needed):
    rates = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0003, 0.0001)
    assert tuple(requests_needed(rate, confidence) for rate in rates) == needed


def test_requests_needed_with_failures():
    assert [requests_needed(0.001, 0.95, failures) for failures in range(6)] == [2995, 4742, 6294, 7752, 9151, 10511]


@pytest.mark.parametrize(
    ("failures", "trials", "percent"),
    [
        (0, 200, 1.49),
        (0, 500, 0.597),
        (0, 1000, 0.299),
        (1, 1000, 0.473),
        (3, 1000, 0.774),
        (0, 3000, 0.0998),
        (1, 3000, 0.158),
        (0, 10_000, 0.030),
        (3, 10_000, 0.0775),
    ],
)
def test_upper_bound_table(failures, trials, percent):
    assert upper_bound(failures, trials) * 100 == pytest.approx(percent, rel=0.004)


def test_zero_failures_have_a_closed_form():
    # 1 − 0.05^(1/59) = 0.04951…
    assert upper_bound(0, 59) == pytest.approx(1 - 0.05 ** (1 / 59))


@given(counts, confidences)
def test_the_upper_bound_is_where_so_few_failures_become_unlikely(count, confidence):
    failures, trials = count
    bound = upper_bound(failures, trials, confidence)
    if failures == trials:
        assert bound == 1.0
    else:
        # P(at most k failures | rate = bound) = 1 − confidence, by the definition of the bound.
        assert bdtr(failures, trials, bound) == pytest.approx(1 - confidence, abs=1e-6)


@given(counts, confidences)
def test_both_sides_enclose_the_observed_rate_and_mirror_each_other(count, confidence):
    failures, trials = count
    lower, upper = clopper_pearson(failures, trials, confidence)
    assert 0 <= lower <= failures / trials <= upper <= 1
    # counting the successes instead swaps the sides.
    assert upper == pytest.approx(1 - clopper_pearson(trials - failures, trials, confidence).lower, abs=1e-9)


@settings(max_examples=50)
@given(st.floats(1e-4, 0.9), confidences, st.integers(0, 5))
def test_requests_needed_is_the_fewest(rate, confidence, failures):
    needed = requests_needed(rate, confidence, failures)
    assert upper_bound(failures, needed, confidence) <= rate
    assert needed == failures + 1 or upper_bound(failures, needed - 1, confidence) > rate


def test_statement():
    # 1 − 0.05^(1/300) = 0.00994
    assert statement(0, 300) == "0 of 300: rate below 0.994 % at 95 %"
    assert statement(0, 0) == "0 of 0: nothing scored, so nothing can be said"


def test_nothing_tried_bounds_nothing():
    assert (lower_bound(0, 0), upper_bound(0, 0)) == (0.0, 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: upper_bound(2, 1),
        lambda: upper_bound(-1, 1),
        lambda: lower_bound(0, 1, 1.0),
        lambda: requests_needed(0.0),
        lambda: requests_needed(0.1, 0.95, -1),
    ],
    ids=["more failures than trials", "negative", "certainty", "rate 0", "negative failures"],
)
def test_impossible_counts_are_refused(call):
    with pytest.raises(BoundsError):
        call()
