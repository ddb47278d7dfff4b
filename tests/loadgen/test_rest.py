"""How long a user rests after failures."""

from __future__ import annotations

import pytest

from pdwatch.loadgen.exchange import End, Exchange
from pdwatch.loadgen.rest import Rest


def exchange(end: End = End.ENDED, took_seconds: float = 0.0) -> Exchange:
    return Exchange(None, sent_seconds=10.0, end=end, ended_seconds=10.0 + took_seconds)


def test_rests_double_up_to_a_second_and_are_forgotten_by_success() -> None:
    rest = Rest()
    rests = [rest.after(exchange(End.NO_CONNECTION), None, None) for _ in range(7)]
    assert rests == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1])
    assert rest.after(exchange(), 200, None) == 0
    assert rest.after(exchange(), 503, None) == pytest.approx(0.05)


def test_what_took_its_time_to_fail_needs_no_rest() -> None:
    rest = Rest()
    assert rest.after(exchange(End.CLOSED, 0.03), None, None) == pytest.approx(0.02)
    assert rest.after(exchange(End.TIMEOUT, 60), None, None) == 0


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [("1", 1), ("0", 0.05), ("3600", 5), ("Fri, 01 Jan 2027 00:00:00 GMT", 0.05)]
)
def test_retry_after_is_honoured_within_bounds(retry_after: str, seconds: float) -> None:
    assert Rest().after(exchange(), 429, retry_after) == pytest.approx(seconds)


def test_going_away_is_neither_failure_nor_success() -> None:
    rest = Rest()
    rest.after(exchange(), 500, None)
    assert rest.after(exchange(End.CANCELLED), None, None) == 0
    assert rest.after(exchange(), 500, None) == pytest.approx(0.1)
