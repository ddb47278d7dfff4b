"""The search for capacity: its path, its words, and how often they are true."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from pdwatch.loadgen.capacity import CapacitySearch, Decision, Search


def run(search: CapacitySearch, share: Callable[[float], float], seed: int = 1) -> list[float]:
    """Look at loads until the search is over, each request good with the load's share; the loads."""
    source = Random(seed)
    loads = []
    while (load := search.next_load()) is not None:
        loads.append(load)
        search.add(
            load, [0.5 if source.random() < share(load) else 2.0 for _ in range(search.config.requests(load))], load
        )
    return loads


def cliff(at: float) -> Callable[[float], float]:
    """All good up to a load, then none."""
    return lambda load: 1.0 if load <= at else 0.0


@pytest.mark.parametrize(
    ("at", "most", "loads", "statement"),
    [
        # from 16 and 32: √(16·32) = 23, √(16·23) = 19, √(19·23) = 21, √(19·21) = 20; 21 / 20 is within 10 %
        (
            20,
            512,
            [1, 2, 4, 8, 16, 32, 23, 19, 21, 20],
            "20 users meets 95 % of requests within the SLO, 21 users does not",
        ),
        (1, 512, [1, 2], "1 users meets 95 % of requests within the SLO, 2 users does not"),
        (0, 512, [1], "1 users misses 95 % of requests within the SLO"),
        (100, 6, [1, 2, 4, 6], "6 users meets 95 % of requests within the SLO, higher was not tried"),
    ],
)
def test_a_cliff_is_found(at: float, most: float, loads: list[float], statement: str) -> None:
    search = CapacitySearch(Search(most=most))
    assert run(search, cliff(at)) == loads
    assert search.statement() == f"{statement}, at 95 % confidence"


def test_rates_need_not_be_whole() -> None:
    search = CapacitySearch(Search(kind="rate", start=0.5, most=8, precision=0.2))
    assert run(search, cliff(1.3)) == [0.5, 1.0, 2.0, 1.414, 1.189]
    assert search.statement().startswith(
        "1.189 requests/s meets 95 % of requests within the SLO, 1.414 requests/s does"
    )


def test_an_unclear_load_is_looked_at_again_and_told() -> None:
    """Exactly at the target nothing can be decided, whatever is measured."""
    search = CapacitySearch(Search(start=8, most=32))
    shares = {8.0: 1.0, 16.0: 0.95, 32.0: 0.5}
    loads = run(search, lambda load: shares.get(load, 1.0 if load < 16 else 0.5))
    assert loads[:6] == [8, 16, 16, 16, 16, 32]
    assert search.trials[16].looks == 4
    assert "cannot tell for 16 users" in search.statement()


def test_what_follows_from_other_loads_needs_no_second_look() -> None:
    search = CapacitySearch(Search(start=1, most=4, looks=1))
    search.add(1, [0.5] * 18 + [2.0] * 2, 1)
    assert search.trials[1].decision is Decision.CANNOT_TELL
    search.add(2, [0.5] * 1000, 2)
    search.add(4, [0.5] * 1000, 4)
    assert search.next_load() is None
    assert (
        search.statement() == "4 users meets 95 % of requests within the SLO, higher was not tried, at 95 % confidence"
    )


def test_results_that_contradict_each_other_are_no_answer() -> None:
    search = CapacitySearch(Search(most=8))
    search.add(1, [0.5] * 1000, 1)
    search.add(2, [2.0] * 1000, 1)
    search.add(4, [0.5] * 1000, 1)
    assert search.next_load() is None
    assert search.statement() == "cannot tell: 4 users meets the SLO while 2 users misses it"


def test_the_client_at_its_limit_ends_the_search() -> None:
    search = CapacitySearch(Search())
    search.add(1, [0.5] * 1000, 1)
    search.stop(2, "loop lag p99 30 ms is over 20 ms")
    assert search.next_load() is None
    assert search.statement() == (
        "1 users meets 95 % of requests within the SLO, at 95 % confidence; "
        "the search ended at 2 users: loop lag p99 30 ms is over 20 ms"
    )


def test_a_rise_that_chance_seldom_makes_keeps_a_load_from_meeting() -> None:
    """One look at z = 2 is beyond 1.645; with a second at 0 their sum is 2 / √2 = 1.41."""
    search = CapacitySearch(Search(kind="rate", start=8, most=8))
    first = search.requests(8)
    assert search.add(8, [0.1] * 1000, 8, growth_z=2.0) is Decision.CANNOT_TELL
    # what was to be seen in one was not: the next is longer
    assert search.requests(8) == 2 * first
    assert search.add(8, [0.1] * 1000, 8, growth_z=0.0) is Decision.MEETS
    # one that misses does so however its queue went
    search = CapacitySearch(Search(kind="rate", start=8, most=8))
    assert search.add(8, [2.0] * 1000, 8, growth_z=2.0) is Decision.MISSES


def test_a_look_at_a_rate_has_a_least_length() -> None:
    search = Search(kind="rate", start=8, most=8)
    assert search.requests(100) == 6000
    # whatever the target, there are enough to tell whether their number rose
    assert Search(kind="rate", start=1, most=1, target_share=0.1, least_seconds=1).requests(1) == 40


def test_nothing_decided() -> None:
    search = CapacitySearch(Search(most=1, looks=1))
    search.add(1, [0.5, 2.0], 1)
    assert search.next_load() is None
    assert search.statement().startswith("cannot tell: no load could be decided")


def test_decisions_share_the_error() -> None:
    # 512 users: 1, 2, … 512 are ten loads; a gap of 2 is halved three times to be within 10 %, perhaps from both sides
    search = Search()
    assert search.decisions == 4 * (10 + 2 * 3)
    assert search.decision_confidence == pytest.approx(1 - 0.05 / 64)
    # 2 · z² · 0.95 / 0.05 with z = 3.162, and ten requests for each user
    assert (search.requests(1), search.requests(100)) == (381, 1000)


@pytest.mark.parametrize("slope", [0.002, 0.01])
def test_statements_are_true_as_often_as_they_say(slope: float) -> None:
    """Share 1 − slope · load falls through the target at 0.05 / slope; wrong is a decision on the wrong side of it."""
    truth = 0.05 / slope
    wrong = 0
    for seed in range(200):
        search = CapacitySearch(Search(most=128))
        run(search, lambda load: max(0.0, 1 - slope * load), seed)
        wrong += any(
            (trial.decision is Decision.MEETS and load > truth) or (trial.decision is Decision.MISSES and load < truth)
            for load, trial in search.trials.items()
        )
    # 5 % of 200 are 10
    assert wrong <= 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"start": 8, "most": 4}, "search.most is 4, below search.start = 8"),
        ({"start": 1.5}, "numbers of users; give whole ones"),
        ({"target_share": 1}, "less than 1"),
        ({"confidence": 0.5}, "greater than 0.5"),
        ({"precision": 0}, "greater than 0.005"),
    ],
)
def test_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Search(**changes)
