"""Figures while a phase runs."""

from __future__ import annotations

import pytest

from pdwatch.loadgen.live import Live, LiveHistogram
from pdwatch.loadgen.slo import Slo
from pdwatch.loadgen.transcript import Outcome


def test_percentiles_are_within_one_percent() -> None:
    histogram = LiveHistogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    for percent in (1, 50, 99, 100):
        assert histogram.percentile(percent) == pytest.approx(percent / 100, rel=0.011)
    histogram.add(0.0)
    assert LiveHistogram().percentile(50) is None


def test_figures(row, failure) -> None:
    live = Live(Slo(ttft_seconds=0.3))
    assert live.figures(100.0) == {
        "outcomes": {},
        "expected_errors": 0,
        "ttft_p50_seconds": None,
        "ttft_p99_seconds": None,
        "tpot_p50_seconds": None,
        "tpot_p99_seconds": None,
        "complete_per_second": None,
        "output_tokens_per_second": None,
        "good_share": None,
    }
    for number in range(8):
        live.add(row(number, 100.0 + number))
    live.add(failure(8, 107.0))
    live.add(row(9, 107.0, outcome=Outcome.CANCELLED))
    live.add(failure(10, 107.0, outcome=Outcome.HTTP_ERROR, status=400, expects="http_error"))
    got = live.figures(108.0)
    assert got["outcomes"] == {"complete": 8, "reset": 1, "cancelled": 1, "http_error": 1}
    assert got["expected_errors"] == 1
    assert got["ttft_p50_seconds"] == pytest.approx(0.2, rel=0.01)
    assert got["tpot_p99_seconds"] == pytest.approx(0.1, rel=0.01)
    # ended at 103 to 108, that is within the last five seconds: six of them, with nine tokens each
    assert got["complete_per_second"] == pytest.approx(6 / 5)
    assert got["output_tokens_per_second"] == pytest.approx(54 / 5)
    # eight of the nine that were neither cancelled nor to be refused
    assert got["good_share"] == pytest.approx(8 / 9)
