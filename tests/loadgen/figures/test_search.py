"""The phases of a search, and what it makes of servers whose capacity is known because they are simulated."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from random import Random

import pytest

from pdwatch.loadgen.capacity import CapacitySearch, Decision, Search
from pdwatch.loadgen.load import OpenLoad
from pdwatch.loadgen.plan import Phase
from pdwatch.loadgen.row import RequestRow
from pdwatch.loadgen.search import Look, looks
from pdwatch.loadgen.slo import Slo
from pdwatch.loadgen.steady import Window, in_flight_mean, phase_window
from pdwatch.loadgen.summary import margins
from pdwatch.loadgen.validity import Validity

Make = Callable[..., RequestRow]
USERS = Phase(index=0, arm="candidate", level=1)
RATE = Phase(index=0, arm="candidate", level=1024, load=OpenLoad(kind="open", rate_per_second=1))
VALID = Validity(is_valid=True)
STEADY = Window(0.0, 30.0, "truncated", growth_z=0.0)
GROWING = Window(0.0, 30.0, "none", "outstanding requests drift: ×3.00", is_growing=True, growth_z=4.3)
UNSTEADY = Window(0.0, 30.0, "none", "TTFT drifts: ×1.40", growth_z=1.0)
NOISY = Validity(is_valid=False, reasons=("process driver used 99 % of a core",))
BOUND = Validity(is_valid=False, reasons=("the bound of 16 in flight was reached",), is_bound_reached=True)

# a server of 16 slots that serves 19.6 requests/s.
SLOTS = 16
CAPACITY = 19.6


def served(make: Make, source: Random, phase: Phase) -> list[RequestRow]:
    """A phase of Poisson arrivals at an empty server; an answer takes its slot 0.65 to 0.98 s and follows its TTFT."""
    assert isinstance(phase.load, OpenLoad) and phase.requests is not None
    free = [0.0] * SLOTS
    rows: list[RequestRow] = []
    now, measured = 0.0, 0
    while measured < phase.requests:
        now += source.expovariate(phase.load.rate_per_second)
        starts = max(now, heapq.heappop(free))
        ends = starts + SLOTS / CAPACITY * source.uniform(0.8, 1.2)
        heapq.heappush(free, ends)
        first = starts - now + 0.05
        rows.append(
            make(
                len(rows),
                now,
                seconds=ends - now,
                scheduled_seconds=now,
                time_to_first_token_seconds=first,
                scheduled_time_to_first_token_seconds=first,
                scheduled_end_to_end_seconds=ends - now,
                time_per_output_token_seconds=(ends - starts) / 8,
            )
        )
        measured += now >= phase.warmup_seconds
    return rows


def look_at(look: Look, make: Make, source: Random, slo: Slo) -> str | None:
    rows = served(make, source, look.phase)
    starts = look.phase.warmup_seconds
    window = phase_window(look.phase.load, 1, rows, starts, max(row.ended_seconds for row in rows))
    in_flight = in_flight_mean(rows, window.starts_seconds, window.ends_seconds)
    return look.decide(window, margins(rows, window, slo), in_flight, VALID)


@pytest.mark.parametrize("limits", ["ttft=500ms", "ttft=2s", "ttft=5s", "ttft=60s", "tpot=1s", "e2e=10s"])
def test_a_rate_above_what_is_served_is_never_certified(row: Make, limits: str) -> None:
    """22 requests/s at a server of 19.6: most SLOs break late, some never within a look."""
    for seed in range(8):
        search = CapacitySearch(Search(kind="rate", start=22, most=22))
        found = [
            look_at(look, row, Random(f"{limits}/{seed}/{look.load}"), Slo.parse(limits))
            for look in looks(search, RATE)
        ]
        assert Decision.MEETS.value not in found
        assert "22 requests/s meets" not in search.statement()


def test_capacity_is_found(row: Make) -> None:
    """From far below to far above; what it says lies within the precision and what a look can resolve."""
    for seed in range(3):
        search = CapacitySearch(Search(kind="rate", start=4, most=512))
        for look in looks(search, RATE):
            look_at(look, row, Random(f"{seed}/{look.load}"), Slo.parse("ttft=5s"))
        meets = max(load for load, trial in search.trials.items() if trial.decision is Decision.MEETS)
        misses = min(load for load, trial in search.trials.items() if trial.decision is Decision.MISSES)
        assert 0.75 * CAPACITY <= meets <= 1.06 * CAPACITY
        assert 0.95 * CAPACITY <= misses <= 1.35 * CAPACITY


def test_phases_of_users_and_of_rates() -> None:
    first = next(looks(CapacitySearch(Search(start=3)), USERS)).phase
    assert (first.level, first.index, first.requests) == (3, 0, Search(start=3).requests(3))
    search = CapacitySearch(Search(kind="rate", start=100, least_seconds=20))
    phase = next(looks(search, RATE)).phase
    assert isinstance(phase.load, OpenLoad)
    assert (phase.level, phase.load.rate_per_second, phase.requests) == (1024, 100, 2000)


@pytest.mark.parametrize("template", [USERS, RATE])
def test_a_look_that_is_not_steady_never_meets(template: Phase) -> None:
    kind = "users" if template is USERS else "rate"
    search = CapacitySearch(Search.model_validate({"kind": kind, "start": 8, "most": 8}))
    requests = []
    for look in looks(search, template):
        requests.append(look.phase.requests)
        assert look.decide(UNSTEADY, [0.1] * 5000, 8.0, VALID) == "cannot_tell"
    # each is longer than the one before
    assert requests == [requests[0], *(requests[0] * factor for factor in (2, 4, 8))]  # type: ignore[operator]
    assert search.statement().startswith("cannot tell: no load could be decided")


def test_a_growing_queue_and_a_full_bound_miss() -> None:
    for window, validity in ((GROWING, VALID), (UNSTEADY, BOUND), (STEADY, BOUND)):
        search = CapacitySearch(Search(kind="rate", start=8, most=8))
        assert next(looks(search, RATE)).decide(window, [0.1] * 5000, 8.0, validity) == "misses"
        assert search.statement() == "8 requests/s misses 95 % of requests within the SLO, at 95 % confidence"


def test_noise_is_looked_at_again() -> None:
    search = CapacitySearch(Search(start=1, most=1))
    validities = [NOISY, NOISY, VALID]
    decisions = [look.decide(STEADY, [0.1] * 1000, 1.0, validities.pop(0)) for look in looks(search, USERS)]
    assert decisions == [None, None, "meets"]
    # a growing queue that the client made is the client's too
    search = CapacitySearch(Search(kind="rate", start=1, most=1))
    assert next(looks(search, RATE)).decide(GROWING, [], 1.0, NOISY) is None


def test_a_client_that_stays_the_limit_ends_the_search() -> None:
    search = CapacitySearch(Search(start=1, most=4, looks=3))
    seen = []
    for look in looks(search, USERS):
        seen.append((look.load, look.phase.index))
        look.decide(STEADY, [0.1] * 1000, 1.0, VALID if look.load == 1 else NOISY)
    assert seen == [(1, 0), (2, 1), (2, 2), (2, 3)]
    assert search.statement() == (
        "1 users meets 95 % of requests within the SLO, at 95 % confidence; the search ended at 2 users: "
        "the client was the limit: process driver used 99 % of a core (in the last of 3 looks)"
    )


def test_no_look_is_begun_after_the_time_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    search = CapacitySearch(Search(most_seconds=120))
    for look in looks(search, USERS):
        look.decide(STEADY, [0.1] * 1000, 1.0, VALID)
        clock[0] += 70
    assert sorted(search.trials) == [1, 2]
    assert search.statement() == (
        "2 users meets 95 % of requests within the SLO, at 95 % confidence; "
        "the search ended at 4 users: the time allowed is over (2 minutes)"
    )
