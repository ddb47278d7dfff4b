"""What the client counts of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdwatch.loadgen.meter import LAG_SECONDS, Meter


class Clock:
    """A clock that is set by hand, an alarm on it, and the meter they belong to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        self.set_seconds = 0.0
        monkeypatch.setattr("pdwatch.loadgen.meter.time", SimpleNamespace(monotonic=lambda: self.seconds))
        monkeypatch.setattr("pdwatch.loadgen.meter.Alarm", self._alarm)
        self.meter = Meter()
        poller: Any = None
        self.meter.watch(poller, {})
        self.meter.begin()

    def run(self, for_seconds: float) -> None:
        """The loop comes round all the time, and rings when it is time to."""
        until = self.seconds + for_seconds
        while self.set_seconds <= until:
            self.seconds = self.set_seconds
            self._ring()
        self.seconds = until

    def stand_still(self, for_seconds: float) -> None:
        """The loop does not come round, and then rings once."""
        self.seconds += for_seconds
        self._ring()

    def _alarm(self, poller: Any, ring: Any) -> Any:
        self._ring = ring
        return SimpleNamespace(set=self._set, close=lambda: None)

    def _set(self, at_seconds: float) -> None:
        self.set_seconds = at_seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_loop_in_time_has_no_lag(clock: Clock) -> None:
    clock.run(16)
    facts = clock.meter.facts(None, None)
    assert facts.loop_lag_most_seconds == pytest.approx(0, abs=1e-9)


def test_a_loop_that_stands_still_is_late_for_each_ring_it_misses(clock: Clock) -> None:
    # 22 % of the time: one sample for each stop would leave the 99th percentile where it is.
    for _ in range(4):
        clock.run(3.1)
        clock.stand_still(0.9)
    facts = clock.meter.facts(None, None)
    assert facts.loop_lag_p50_seconds == pytest.approx(0, abs=1e-9)
    assert facts.loop_lag_p99_seconds == pytest.approx(0.9, abs=0.1)
    assert facts.loop_lag_most_seconds == pytest.approx(0.9, abs=LAG_SECONDS)


def test_a_stop_that_lasts_is_counted_without_a_ring(clock: Clock) -> None:
    clock.run(1)
    clock.seconds += 0.5
    assert clock.meter.facts(None, None).loop_lag_most_seconds == pytest.approx(0.5, abs=LAG_SECONDS)


def test_a_stop_before_the_measured_part_is_none_of_it(clock: Clock) -> None:
    clock.seconds += 0.5
    clock.meter.begin()
    clock.run(1)
    assert clock.meter.facts(None, None).loop_lag_most_seconds == pytest.approx(0, abs=1e-9)


def test_users_in_flight_and_held_up_are_means_over_time(clock: Clock) -> None:
    meter = clock.meter
    meter.sent(None, clock.seconds)
    meter.hold_up()
    clock.seconds += 1
    meter.let_go()
    meter.sent(None, clock.seconds)
    clock.seconds += 3
    meter.ended(clock.seconds)
    meter.note_refusal()
    meter.stop_flow()
    clock.seconds += 10
    facts = meter.facts(2.0, None, 5)
    assert meter.held_up_mean() == 0.25
    assert facts.achieved_in_flight == (1 + 3 * 2) / 4
    assert (facts.back_off_seconds, facts.client_refusals) == (1.0, 1)
    assert (facts.most_in_flight, facts.bound_in_flight) == (2, 5)
