"""Schedules: their mean, their scatter, and that a seed gives one schedule."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from pdwatch.loadgen.arrivals import arrival_offsets
from pdwatch.loadgen.load import OpenLoad

LOADS = [
    pytest.param({"arrivals": "poisson"}, id="poisson"),
    pytest.param({"arrivals": "gamma", "burstiness": 0.25}, id="bursty"),
    pytest.param({"arrivals": "gamma", "burstiness": 4}, id="smooth"),
    pytest.param({"arrivals": "constant"}, id="constant"),
]


def gap_variation(load: OpenLoad) -> float:
    """Coefficient of variation of the gaps: 0 constant, 1 Poisson, above 1 bursty."""
    return 0.0 if load.arrivals == "constant" else 1 / math.sqrt(load.burstiness)


@pytest.mark.parametrize("changes", LOADS)
def test_mean_and_scatter(changes: dict[str, object]) -> None:
    load = OpenLoad.model_validate({"kind": "open", "rate_per_second": 20.0, **changes})
    offsets = list(islice(arrival_offsets(load, seed=3), 20_001))
    gaps = [later - earlier for earlier, later in pairwise(offsets)]
    variation = gap_variation(load)
    # the mean of 20,000 gaps has a standard error of variation / √20000; four of them
    assert fmean(gaps) == pytest.approx(0.05, rel=4 * variation / 20_000**0.5 + 1e-9)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.05, abs=1e-9)
    assert min(gaps) >= 0


def test_constant_arrivals_gather_no_error() -> None:
    load = OpenLoad(kind="open", rate_per_second=3.0, arrivals="constant")
    assert next(islice(arrival_offsets(load, seed=1), 3_000_000, None)) == 1_000_000.0


def test_poisson_counts_scatter_as_poisson() -> None:
    load = OpenLoad(kind="open", rate_per_second=10.0)
    counts = [0] * 2_000
    for offset in arrival_offsets(load, seed=5):
        if offset >= len(counts):
            break
        counts[int(offset)] += 1
    # mean 10 and variance 10
    assert fmean(counts) == pytest.approx(10, abs=0.3)
    assert pstdev(counts) ** 2 == pytest.approx(10, abs=1.3)


def test_a_seed_is_a_schedule() -> None:
    load = OpenLoad(kind="open", rate_per_second=10.0)
    one, again, other = (list(islice(arrival_offsets(load, seed), 50)) for seed in (1, 1, 2))
    assert one == again != other
