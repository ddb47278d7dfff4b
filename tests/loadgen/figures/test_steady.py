"""The steady window, on loads whose truth is known because they are simulated."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

import pytest

from pdwatch.loadgen.load import ClosedLoad, OpenLoad, RampLoad, WavesLoad
from pdwatch.loadgen.row import RequestRow
from pdwatch.loadgen.steady import Window, in_flight_mean, mser, phase_window, steady_window, whole_window

Make = Callable[..., RequestRow]


def closed_loop(
    make: Make,
    source: Random,
    *,
    users: int,
    ends: float,
    answers_seconds: float = 0.2,
    joins_after_seconds: float = 0.0,
) -> list[RequestRow]:
    """Users who send again 0.5 ms after each answer, the n-th from `n · joins_after_seconds` on, until `ends`."""
    rows: list[RequestRow] = []
    for user in range(users):
        now = user * joins_after_seconds
        while now < ends:
            seconds = answers_seconds * source.uniform(0.5, 1.5)
            rows.append(make(len(rows), now, seconds=seconds, time_to_first_token_seconds=seconds / 4))
            now += seconds + 0.0005
    return rows


def open_loop(make: Make, source: Random, *, rate: float, ends: float, servers: int = 8) -> list[RequestRow]:
    """Poisson arrivals at a queue before `servers` servers that each answer in 0.2 s on average."""
    free = [0.0] * servers
    rows: list[RequestRow] = []
    now = source.expovariate(rate)
    while now < ends:
        starts = max(now, heapq.heappop(free))
        finishes = starts + source.expovariate(5)
        heapq.heappush(free, finishes)
        first = starts - now + 0.05 * source.lognormvariate(0, 0.3)
        rows.append(make(len(rows), now, seconds=finishes - now + 0.05, time_to_first_token_seconds=first))
        now += source.expovariate(rate)
    return rows


def test_ramp_up_and_drain_are_cut_off(row: Make) -> None:
    # 40 users join over 8 s and nobody sends after 30 s; the measured part is taken for 0 to 32
    rows = closed_loop(row, Random(1), users=40, ends=30, joins_after_seconds=0.2)
    window = steady_window(rows, 40, 0, 32)
    assert window.is_steady
    # 0.9 · 40 users are there after 7.2 s
    assert 6.5 <= window.starts_seconds <= 9
    assert 29.5 <= window.ends_seconds <= 30.5
    mean = in_flight_mean(rows, window.starts_seconds, window.ends_seconds)
    assert mean == pytest.approx(40, rel=0.02)


@pytest.mark.parametrize("users", [1, 8, 64])
def test_a_steady_loop_is_kept_nearly_whole(row: Make, users: int) -> None:
    rows = closed_loop(row, Random(2), users=users, ends=12)
    window = steady_window(rows, users, 2, 10)
    assert window.is_steady
    assert window.seconds >= 0.6 * 8
    assert 2 <= window.starts_seconds < window.ends_seconds <= 10


def test_too_few_users_is_no_steady_state(row: Make) -> None:
    rows = closed_loop(row, Random(3), users=40, ends=12)
    window = steady_window(rows, 64, 2, 10)
    assert (window.method, window.starts_seconds, window.ends_seconds) == ("none", 2, 10)
    assert window.detail == "in flight ≥ 0.9 × 64 for 0 % of the measured part at a stretch"


def test_a_slow_beginning_is_dropped(row: Make) -> None:
    # the first 3 s of 20 are ten times slower to the first token
    rows = [
        row(n, n * 0.05, time_to_first_token_seconds=(1.0 if n < 60 else 0.1) * Random(n).uniform(0.9, 1.1))
        for n in range(400)
    ]
    window = steady_window(rows, None, 0, 20)
    assert window.method == "truncated"
    assert window.starts_seconds == pytest.approx(3.0, abs=0.3)
    # with the last of them, not with what follows
    assert 19.95 < window.ends_seconds < 19.951
    assert window.detail == "MSER-5 on log TTFT dropped 60 of 400"


def test_one_slow_request_at_the_front_is_no_transient(row: Make) -> None:
    rows = [row(n, n * 0.05, time_to_first_token_seconds=0.1 * Random(n).uniform(0.5, 1.5)) for n in range(1, 400)]
    rows.insert(0, row(0, 0.0, time_to_first_token_seconds=1.0))
    assert steady_window(rows, None, 0, 20).seconds > 15


def counted(row: Make, rate: float, seconds: float = 60) -> int:
    """In how many of 20 simulations a steady window is found."""
    return sum(
        steady_window(open_loop(row, Random(seed), rate=rate, ends=seconds), None, 5, 60).is_steady
        for seed in range(20)
    )


def test_open_loop_below_and_above_what_is_served(row: Make) -> None:
    # eight servers at 0.2 s serve 40 requests/s
    assert counted(row, 20) == 20
    assert counted(row, 32) >= 19
    assert counted(row, 48) <= 2
    assert counted(row, 80) == 0


def test_growing_requests_in_flight_are_no_steady_state(row: Make) -> None:
    """First tokens come on time while answers get longer and longer."""
    rows = [row(n, n * 0.05, seconds=0.3 + n * 0.001) for n in range(800)]
    window = steady_window(rows, None, 2, 40)
    assert window.method == "none"
    assert window.detail.startswith("outstanding requests drift: ×1.")
    # a wandering queue can come to twice its length: no proof that nothing drains it
    assert not window.is_growing and (window.growth_z or 0) > 3.29


def late(row: Make, rate: float, slots: int, seconds: float, requests: int) -> list[RequestRow]:
    """Requests due at a constant rate, of which `slots` are let out at a time, each for so many seconds."""
    free = [0.0] * slots
    rows: list[RequestRow] = []
    for number in range(requests):
        due = number / rate
        sent = max(due, heapq.heappop(free))
        heapq.heappush(free, sent + seconds)
        rows.append(row(number, sent, seconds=seconds, scheduled_seconds=due))
    return rows


def test_what_waits_in_the_client_is_outstanding(row: Make) -> None:
    # 16 in flight for 0.5 s are 32 requests/s of 60: at the server all is steady
    rows = late(row, 60, 16, 0.5, 600)
    window = steady_window(rows, None, 0, 10)
    assert (window.method, window.is_growing) == ("none", True)
    assert steady_window(late(row, 30, 16, 0.5, 300), None, 0, 10).is_steady


def test_the_drain_after_the_last_request_is_outside(row: Make) -> None:
    """A phase of so many requests ends with the last answer; in open loop the load ended long before."""
    source = Random(5)
    rows = [row(n, n * 0.1, seconds=2.0 * source.uniform(0.9, 1.1)) for n in range(300)]
    window = steady_window(rows, None, 3.0, rows[-1].ended_seconds)
    assert window.is_steady
    assert window.ends_seconds == pytest.approx(29.9)
    assert in_flight_mean(rows, window.starts_seconds, window.ends_seconds) == pytest.approx(20, rel=0.05)


def test_long_requests_fill_up_before_they_are_judged(row: Make) -> None:
    """Requests of 8 s at a constant rate: until 8 s their number rises though all is well."""
    rows = [row(n, n * 0.1, seconds=8.0) for n in range(300)]
    assert steady_window(rows, None, 2, 30).is_steady
    short = steady_window([one for one in rows if one.sent_seconds < 14], None, 2, 14)
    assert (short.method, short.is_growing) == ("none", False)
    assert short.detail == "requests take longer than half of the measured part"


def test_each_load_has_its_window(row: Make) -> None:
    rows = closed_loop(row, Random(2), users=8, ends=12)
    for load in (ClosedLoad(), RampLoad(kind="ramp", over_seconds=1)):
        assert phase_window(load, 8, rows, 2, 10) == steady_window(rows, 8, 2, 10)
    assert phase_window(OpenLoad(kind="open", rate_per_second=9), 8, rows, 2, 10) == steady_window(rows, None, 2, 10)
    waves = phase_window(WavesLoad(kind="waves", sizes=(8,)), 8, rows, 2, 10)
    assert waves == whole_window(2, 10, "waves: not meant to be steady")


def test_few_requests(row: Make) -> None:
    rows = closed_loop(row, Random(4), users=2, ends=2)
    window = steady_window(rows, 2, 0, 2)
    assert window.method == "steady"
    assert "too few first tokens" in window.detail
    assert steady_window([], None, 0, 2).method == "steady"
    assert steady_window([], 4, 0, 2).method == "none"
    assert steady_window([], 4, 2, 2).method == "none"


def test_mser_by_hand() -> None:
    # dropping the two high ones leaves no scatter at all
    assert mser([9.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 2
    # a straight line is best cut as far as allowed: it has not settled
    assert mser([float(n) for n in range(12)]) is None
    assert mser([1.0, 2.0] * 6) == 0


def test_in_flight_mean_by_hand(row: Make) -> None:
    # 2 s of one request and 1 s of another inside a window of 4 s
    rows = [row(0, 10.0, seconds=2.0), row(1, 13.0, seconds=5.0), row(2, 20.0)]
    assert in_flight_mean(rows, 10, 14) == pytest.approx(3 / 4)
    assert in_flight_mean(rows, 14, 14) is None


def test_windows() -> None:
    window = whole_window(1, 3, "waves come and go")
    assert (window.seconds, window.is_steady, window.detail) == (2, False, "waves come and go")
    assert Window(1, 2, "truncated").is_steady


def test_one_request_a_user_is_measured_though_none_is_sent_once_all_are_busy(row: Make) -> None:
    # the users' first requests leave over 0.2 s, and nothing follows them.
    rows = [row(user, user * 0.0001, seconds=2.0, time_to_first_token_seconds=0.05) for user in range(2000)]
    ends = 2.2
    window = steady_window(rows, 2000, 0.0, ends)
    assert (window.starts_seconds, window.ends_seconds, window.method) == (0.0, ends, "none")
