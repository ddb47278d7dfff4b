"""The step law, and the batch each answer was decoded in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pdwatch.gate.assess import RunFacts, assess
from pdwatch.gate.policy import load_policy
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.step_law import decode_batches, fit_step_law
from pdwatch.gate.verdict import Result

Make = Callable[..., RequestRow]


def test_an_answer_counts_those_that_share_its_time_itself_included(row: Make) -> None:
    def answer(number: int, begin: float, end: float, arm: str = "candidate") -> RequestRow:
        return replace(row(number, arm=arm), first_token_seconds=begin, ended_seconds=end)

    rows = [answer(0, 0.0, 4.0), answer(1, 2.0, 4.0), answer(2, 4.0, 5.0), answer(3, 0.0, 9.0, arm="baseline")]
    batches = decode_batches(rows)
    # 0: alone for 2 of 4 s, with 1 for the other 2: 1.5; 1: never alone: 2; 2 begins when they end; 3: another arm
    assert [batches[one.request_id] for one in rows] == [1.5, 2.0, 1.0, 1.0]


def test_an_answer_that_never_began_has_no_batch(row: Make) -> None:
    assert decode_batches([replace(row(0), first_token_seconds=None)]) == {}


def test_the_law_is_found_among_wild_points() -> None:
    source = random.Random(1)
    points = [(batch, 0.002 + 0.0004 * batch) for batch in (source.uniform(1, 20) for _ in range(80))]
    points += [(source.uniform(1, 20), 0.5) for _ in range(8)]
    law = fit_step_law(points, seed=0)
    assert law is not None
    # 8 wild points of 88, all eighty times too high: least squares would say 0.05 at a batch of 10.
    assert law.expected_seconds(10) == pytest.approx(0.006, rel=0.05)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([(batch, 0.01) for batch in range(1, 20)], id="too few"),
        pytest.param([(1.0, 0.002 + 0.0001 * n) for n in range(50)], id="one batch only"),
        pytest.param([(1.0 + n / 5, 0.01 - 0.0001 * n) for n in range(50)], id="falling"),
        pytest.param([(1.0 + n / 5, 0.001 * n) for n in range(50)], id="no fixed part"),
    ],
)
def test_where_points_show_no_law_there_is_none(points: list[tuple[float, float]]) -> None:
    assert fit_step_law(points, seed=0) is None


@pytest.mark.parametrize(
    ("factor", "result"), [(1.0, Result.PASS), (1.3, Result.FAIL)], ids=["larger batches", "and slower"]
)
def test_larger_batches_alone_are_no_slow_down(row: Make, factor: float, result: Result) -> None:
    """The candidate decodes twice the batch: its plain TPOT is 1.57 times the baseline's, at equal batch `factor`."""
    source = random.Random(3)
    rows = []
    for arm, phases, level, overlapping in (
        ("baseline", (0, 2), 4, 2),
        ("candidate", (1,), 4, 2),
        ("baseline", (3, 5), 8, 4),
        ("candidate", (4,), 8, 8),
    ):
        for phase in phases:
            start = 100.0 * phase
            for number in range(160):
                # `overlapping` answers at any time: one begins each 1 / overlapping seconds and takes a second.
                begin = start + number / overlapping
                batch = min(number + 1, overlapping)
                tpot = (0.003 + 0.001 * batch) * source.uniform(0.95, 1.05) * (factor if arm == "candidate" else 1)
                one = row(number, arm=arm, level=level, phase=phase, sent_seconds=begin - 0.1, tpot_seconds=tpot)
                rows.append(replace(one, first_token_seconds=begin, ended_seconds=begin + 1.0))
    # (0.003 + 0.008) / (0.003 + 0.004) = 1.57
    facts = RunFacts(
        levels=(4, 8),
        has_baseline=True,
        reference_available=True,
        running_batch={("candidate", 4): 2, ("candidate", 8): 8},
    )
    verdict = assess(rows, facts, load_policy())
    tpot_comparison = verdict.levels[1].comparisons[0]
    assert tpot_comparison.ratio == pytest.approx(factor, rel=0.06)
    assert verdict.result is result
