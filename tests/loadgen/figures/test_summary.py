"""A phase in figures, with the arithmetic."""

from __future__ import annotations

import math
import resource
from array import array

import numpy
import pytest

from pdwatch.loadgen.slo import Slo
from pdwatch.loadgen.steady import Window, whole_window
from pdwatch.loadgen.summary import Distribution, PhaseSummary, margins, summarise
from pdwatch.loadgen.transcript import Label, Outcome

WINDOW = Window(100.0, 110.0, "truncated")


def test_every_figure_is_of_one_window(row, failure) -> None:
    rows = [
        row(0, 101.0, seconds=1.0),
        row(1, 102.0, seconds=2.0),
        # sent inside, ended outside: its latency counts, its completion does not
        row(2, 109.0, seconds=3.0),
        failure(3, 103.0),
        row(4, 104.0, outcome=Outcome.CANCELLED),
        # outside, though measured
        row(5, 99.0, seconds=9.0),
        row(6, 110.5),
        # warm-up and cool-down: throughput only
        row(7, 98.0, seconds=4.0, label=Label.WARMUP),
        row(8, 109.5, seconds=1.0, label=Label.COOLDOWN),
    ]
    got = summarise(rows, WINDOW)
    assert (got.sent, got.complete, got.failed, got.cancelled) == (5, 3, 1, 1)
    assert got.outcomes == {"complete": 3, "reset": 1, "cancelled": 1}
    assert got.examples == {"reset": "Connection reset by peer"}
    # one failed of the four that were not ours to cancel
    assert got.error_share == 0.25
    assert got.latencies["end_to_end_seconds"].count == 3
    assert got.latencies["end_to_end_seconds"].mean == 2.0
    # 0 and 1 lie inside whole, a third of 2, 8 of the 9 s of 5, half of 7 and of 8
    assert got.complete_per_second == pytest.approx((1 + 1 + 1 / 3 + 8 / 9 + 1 / 2 + 1 / 2) / 10)
    # 0, 1, 2, 3, 4 and 8 were sent inside
    assert got.sent_per_second == pytest.approx(0.6)
    # 9 tokens each, spread from 0.2 s after sending to the end: 0 and 1 whole; of 2 the 0.8 of 2.8 s until 110; the
    # cancelled 4 counts none here as its row, made up, has tokens; of 5 all but 99.2 to 100; of 7 from 100 to 102;
    # of 8 the 0.3 of 0.8 s
    tokens = 9 + 9 + 9 * 0.8 / 2.8 + 9 + 9 * 8.0 / 8.8 + 9 * 2.0 / 3.8 + 9 * 0.3 / 0.8
    assert got.output_tokens_per_second == pytest.approx(tokens / 10)
    # first tokens inside: 0, 1, 2, 4 and 8 (sent at 109.5, first token at 109.7)
    assert got.prompt_tokens_per_second == pytest.approx(500 / 10)
    # 1 + 2 + 1 + 0.1 + 1 + 8 + 2 + 0.5 seconds of requests in ten
    assert got.in_flight_mean == pytest.approx(15.6 / 10)
    assert got.goodput is None


def test_goodput_is_of_all_that_were_sent(row, failure) -> None:
    rows = [row(n, 100.0 + n / 10, seconds=1.0 if n % 10 else 3.0) for n in range(90)]
    rows += [failure(n, 100.0 + n / 10) for n in range(90, 100)]
    rows += [row(200, 105.0, outcome=Outcome.CANCELLED)]
    got = summarise(rows, WINDOW, Slo(e2e_seconds=2.0)).goodput
    assert got is not None
    # 81 of 90 are within 2 s, 9 too slow, 10 failed; the cancelled one is in no share
    assert (got.good, got.eligible, got.share, got.broken) == (81, 100, 0.81, {"e2e": 9})
    assert got.lower < 0.81 < got.upper
    assert got.slo == "e2e ≤ 2 s"
    # of the 81 good ones, and none lies outside
    assert got.per_second == pytest.approx(8.1)
    assert margins(rows, WINDOW, Slo(e2e_seconds=2.0))[:2] == [1.5, 0.5]


@pytest.mark.parametrize("shift", [0.0, 0.001, 0.5, 1.0, 1.369])
@pytest.mark.parametrize("length", [1.37 * 8, 7.0, 0.9])
def test_users_in_lock_step_obey_littles_law(row, shift: float, length: float) -> None:
    """256 users whose requests all begin and end together: rate × time in the system = requests in flight."""
    rows = [row(n, 90 + 1.37 * (n // 256), seconds=1.37, decode_window_seconds=1.37) for n in range(256 * 24)]
    got = summarise(rows, Window(100 + shift, 100 + shift + length, "truncated"), Slo(e2e_seconds=2))
    assert got.in_flight_mean == pytest.approx(256)
    assert got.complete_per_second == pytest.approx(256 / 1.37)
    assert got.output_tokens_per_second == pytest.approx(9 * 256 / 1.37)
    assert got.goodput is not None and got.goodput.per_second == got.complete_per_second


def test_one_user_and_one_request(row) -> None:
    """The measured part ends with its last request's end."""
    got = summarise([row(0, 100.0, seconds=2.0)], whole_window(100.0, 102.0, ""), Slo(e2e_seconds=3))
    assert got.complete_per_second == got.sent_per_second == 0.5
    assert got.goodput is not None and got.goodput.per_second == 0.5


def test_what_was_due_inside_counts_whenever_it_was_sent(row) -> None:
    """60 requests/s for 5 s with a bound of 16, of which 32 a second are let out: the rest waits, and some for ever."""
    rows = [
        row(n, 100 + n / 32, scheduled_seconds=100 + n / 60, scheduled_end_to_end_seconds=n / 32 - n / 60 + 1)
        for n in range(290)
    ]
    got = summarise(rows, Window(100.0, 105.0, "truncated"), Slo(e2e_seconds=2.0), unsent=10)
    assert (got.sent, got.unsent, got.complete) == (290, 10, 290)
    assert got.goodput is not None
    # n/32 − n/60 + 1 ≤ 2 up to n = 68.57
    assert (got.goodput.good, got.goodput.eligible) == (69, 300)
    assert margins(rows, Window(100.0, 105.0, "truncated"), Slo(e2e_seconds=2.0), unsent=10)[-10:] == [math.inf] * 10
    # those due before it are not of it, though they were sent inside
    assert summarise(rows, Window(103.0, 105.0, "truncated")).sent == 290 - 180


def test_what_was_to_be_refused_is_in_no_share(row, failure) -> None:
    refused = {"outcome": Outcome.HTTP_ERROR, "outcome_detail": "HTTP 400: too long", "expects": "http_error"}
    rows = [
        row(0, 101.0),
        row(1, 101.0, expects="call"),
        failure(2, 102.0, status=400, **refused),
        failure(3, 102.0, status=413, **refused),
        # these it must answer for: an error of its own making, a broken connection, a refusal of what is fine
        failure(4, 103.0, status=500, **refused),
        failure(5, 103.0, expects="http_error"),
        failure(6, 103.0, status=400, **refused | {"expects": None}),
        # not refused, though far too long
        row(7, 104.0, expects="http_error"),
    ]
    got = summarise(rows, WINDOW, Slo(e2e_seconds=2.0))
    assert (got.sent, got.complete, got.failed, got.expected_errors, got.unrefused) == (8, 3, 3, 2, 1)
    assert got.error_share == 0.5
    assert got.goodput is not None and (got.goodput.good, got.goodput.eligible) == (3, 6)
    assert got.outcomes == {"complete": 3, "http_error": 4, "reset": 1}
    only = summarise(rows[2:4], WINDOW)
    assert (only.error_share, only.examples) == (None, {})


def test_nothing_is_absent_not_zero() -> None:
    got = summarise([], WINDOW, Slo(e2e_seconds=1))
    assert (got.sent, got.error_share, got.latencies, got.outcomes) == (0, None, {}, {})
    assert got.goodput is not None
    assert (got.goodput.share, got.goodput.lower, got.goodput.upper) == (None, 0.0, 1.0)
    empty = summarise([], whole_window(5, 5, "no time passed"))
    assert (empty.complete_per_second, empty.output_tokens_per_second, empty.in_flight_mean) == (None, None, None)


def test_without_a_steady_window_the_label_decides(row) -> None:
    rows = [row(0, 99.99), row(1, 105.0), row(2, 105.0, label=Label.WARMUP)]
    assert summarise(rows, whole_window(100.0, 110.0, "")).sent == 2
    assert summarise(rows, WINDOW).sent == 1


def test_metrics_without_a_value_are_not_in_the_percentile(row) -> None:
    rows = [
        row(
            0,
            101.0,
            time_per_output_token_seconds=None,
            output_tokens=None,
            inter_token_seconds=None,
            inter_token_basis=None,
        ),
        row(1, 101.0, inter_token_seconds=array("d", [0.1, 0.3]), inter_token_basis="usage"),
    ]
    got = summarise(rows, WINDOW)
    assert got.latencies["time_per_output_token_seconds"].count == 1
    # each token's gap counts once
    assert got.latencies["inter_token_seconds"].count == 2
    assert got.latencies["inter_token_seconds"].p50 == pytest.approx(0.2)
    assert "time_to_first_reasoning_seconds" not in got.latencies
    assert (got.without_usage, got.token_bases) == (1, {"usage": 1})


def test_an_answer_in_one_piece_counts_when_it_came(row) -> None:
    inside = row(0, 105.0, decode_window_seconds=None, time_to_first_token_seconds=None)
    outside = row(1, 109.5, decode_window_seconds=None, time_to_first_token_seconds=None)
    got = summarise([inside, outside], WINDOW)
    assert got.output_tokens_per_second == pytest.approx(9 / 10)
    assert got.prompt_tokens_per_second == pytest.approx(100 / 10)


def test_defects_are_counted(row) -> None:
    got = summarise([row(0, 101.0, defects=("no_done", "id_changed")), row(1, 101.0, defects=("no_done",))], WINDOW)
    assert got.defects == {"no_done": 2, "id_changed": 1}


def test_it_travels_as_json(row, failure) -> None:
    summary = summarise([row(0, 101.0), failure(1, 102.0)], WINDOW, Slo(ttft_seconds=1))
    assert PhaseSummary.model_validate(summary.to_record()) == summary
    assert PhaseSummary.model_validate_json(summary.model_dump_json()) == summary


def test_distribution_is_exact() -> None:
    values = array("d", numpy.random.default_rng(1).lognormal(size=10_001).tolist())
    got = Distribution.of(values)
    assert got is not None
    for name, percent in {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}.items():
        assert getattr(got, name) == pytest.approx(float(numpy.percentile(values, percent)))
    assert (got.smallest, got.largest, got.count) == (min(values), max(values), 10_001)
    assert Distribution.of(array("d")) is None


def test_millions_of_gaps_take_little_memory(row) -> None:
    """10,000 requests of 257 tokens: 2.56 million gaps of 8 bytes, twice, are 41 MB, and one sorted copy at a time."""
    gaps = array("d", [0.02 + number * 1e-6 for number in range(256)])
    rows = [row(n, 100.0 + n / 1000, inter_token_seconds=gaps[:], inter_chunk_seconds=gaps[:]) for n in range(10_000)]
    summarise(rows[:10], WINDOW)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = summarise(rows, WINDOW)
    grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert got.latencies["inter_token_seconds"].count == 2_560_000
    assert got.latencies["inter_token_seconds"].largest == pytest.approx(0.020255)
    assert grown_bytes < 150 * 2**20
