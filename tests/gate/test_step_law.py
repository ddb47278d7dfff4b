"""The step law, and the batch each answer was decoded in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pdwatch.gate.assess import RunFacts, assess
from pdwatch.gate.policy import load_policy
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.step_law import Point, decode_batches, fit_step_law
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
    points = [Point(1 if batch < 8 else 16, batch, 0.002 + 0.0004 * batch) for batch in spread(source, 80)]
    points += [Point(1, batch, 0.5) for batch in spread(source, 8)]
    law = fit_step_law(points, seed=0)
    assert law is not None
    # 8 wild points of 88, all eighty times too high: least squares would say 0.05 at a batch of 10.
    assert law.expected_seconds(10) == pytest.approx(0.006, rel=0.05)
    # nothing is known beyond the largest batch seen.
    assert law.expected_seconds(500) == law.expected_seconds(law.largest_batch) < 0.0101


def spread(source: random.Random, count: int) -> list[float]:
    return [source.uniform(1, 20) for _ in range(count)]


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([Point(batch, batch, 0.01 + batch / 100) for batch in range(1, 20)], id="too few"),
        pytest.param([Point(1 + n % 2, 1.0, 0.002 + 0.0001 * n) for n in range(50)], id="one batch at every level"),
        pytest.param([Point(8, 2 + n / 10, 0.002 + 0.0001 * n) for n in range(50)], id="one level"),
        pytest.param([Point(1 + n // 25, 1.0 + n / 5, 0.01 - 0.0001 * n) for n in range(50)], id="falling"),
        pytest.param([Point(1 + n // 25, 1.0 + n / 5, 0.001 * n) for n in range(50)], id="no fixed part"),
    ],
)
def test_where_points_show_no_law_there_is_none(points: list[Point]) -> None:
    assert fit_step_law(points, seed=0) is None


@pytest.mark.parametrize(
    ("factor", "result"), [(1.0, Result.PASS), (1.3, Result.FAIL)], ids=["larger batches", "and slower"]
)
def test_larger_batches_alone_are_no_slow_down(row: Make, factor: float, result: Result) -> None:
    """At level 8 the candidate decodes twice the batch: its plain TPOT is 1.57 times the baseline's, at equal batch
    `factor`."""
    source = random.Random(3)
    rows = []
    for arm, phases, level, overlapping in (
        ("baseline", (0, 2), 4, 2),
        ("candidate", (1,), 4, 2),
        ("baseline", (3, 5), 8, 4),
        ("candidate", (4,), 8, 8),
        ("baseline", (6, 8), 16, 8),
        ("candidate", (7,), 16, 8),
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
    batches = {("candidate", 4): 2, ("candidate", 8): 8, ("candidate", 16): 8}
    facts = RunFacts(levels=(4, 8, 16), has_baseline=True, reference_available=True, running_batch=batches)
    verdict = assess(rows, facts, load_policy())
    compared = verdict.levels[1].comparisons[0]
    assert compared.at_equal_batch
    assert compared.ratio == pytest.approx(factor, rel=0.06)
    assert verdict.result is result
    told = "Level 8: clients saw TPOT ×1.5" in " ".join(verdict.could_have_missed)
    assert told is (result is Result.PASS)


@pytest.mark.parametrize(("asked", "result"), [(True, Result.PASS), (False, Result.INCONCLUSIVE)], ids=["asked", "not"])
def test_right_answers_that_nobody_held_against_the_reference_prove_little(
    row: Make, asked: bool, result: Result
) -> None:
    rows = [row(number, level=1) for number in range(20)]
    judged = [
        replace(one, judgement=replace(one.judgement, reference_used=asked or number > 1))
        for number, one in enumerate(rows)
        if one.judgement is not None
    ]
    facts = RunFacts(levels=(1,), has_baseline=False, reference_available=True, running_batch={}, asks_about_all=True)
    # 2 of 20 are 10 %, the limit is 5 %.
    assert assess(judged, facts, load_policy()).result is result
