"""Levels: everything counted once, bounds of the right counts, failures merged into bursts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pdwatch.correctness import (
    Judgement,
    Outcome,
    Signature,
    dominant_signature,
    first_corrupt_level,
    merge_bursts,
    summarise,
    upper_bound,
)


def judged(outcome=Outcome.OK, signature=None, sent=0.0, ended: float | None = 1.0, level=4, label="measured"):
    return Judgement(f"r{sent}", outcome, signature, (), "candidate", level, 0, label, sent, ended)


CORRUPT = (Outcome.CORRUPT, Signature.WRONG_VALUE)


def test_counts_and_bounds():
    judgements = [
        *[judged() for _ in range(90)],
        *[judged(Outcome.BENIGN_DIVERGENCE) for _ in range(3)],
        *[judged(Outcome.MODEL_ERROR) for _ in range(2)],
        *[judged(*CORRUPT, sent=float(second), ended=second + 0.5) for second in (1, 2)],
        judged(Outcome.PROTOCOL, Signature.PROTOCOL),
        judged(Outcome.ERROR, Signature.ERROR),
        *[judged(Outcome.UNSCORED) for _ in range(4)],
        *[judged(Outcome.CANCELLED) for _ in range(7)],
        judged(*CORRUPT, label="warmup"),
    ]
    (summary,) = summarise(judgements)
    # 90 + 3 + 2 + 2 + 1 were looked at to the end; warm-up does not count.
    assert (summary.requests, summary.scored, summary.corrupt, summary.failed) == (110, 98, 2, 4)
    assert summary.rate == pytest.approx(2 / 98)
    assert summary.upper == upper_bound(2, 98)
    # the error and the four unscored might all be corrupt: 7 of 103.
    assert summary.worst_case_upper == upper_bound(7, 103)
    assert summary.failure_bursts == 2
    assert summary.dominant_signature is Signature.WRONG_VALUE
    assert summary.statement == "2 of 98: rate below 6.28 % at 95 %, in 2 bursts"
    assert json.loads(json.dumps(summary.to_json()))["outcomes"]["unscored"] == 4
    assert sum(summary.outcomes.values()) == summary.requests


def test_a_level_without_a_scored_request_has_no_rate():
    (summary,) = summarise([judged(Outcome.CANCELLED)])
    assert (summary.rate, summary.upper) == (None, 1.0)


def test_arms_and_levels_apart_and_the_first_corrupt_level():
    baseline = replace(judged(*CORRUPT, level=1), arm="baseline")
    summaries = summarise([judged(level=1), judged(*CORRUPT, level=16), judged(*CORRUPT, level=32), baseline])
    assert [(entry.arm, entry.level) for entry in summaries] == [
        ("baseline", 1),
        ("candidate", 1),
        ("candidate", 16),
        ("candidate", 32),
    ]
    assert first_corrupt_level(summaries, "candidate") == 16
    assert first_corrupt_level(summaries[1:2], "candidate") is None


def test_the_dominant_signature_is_the_commonest_then_the_most_specific():
    wrong, garbled = CORRUPT, (Outcome.CORRUPT, Signature.GARBLED)
    assert dominant_signature(summarise([judged(*wrong), judged(*wrong), judged(*garbled)])) is Signature.WRONG_VALUE
    assert dominant_signature(summarise([judged(*wrong), judged(*garbled)])) is Signature.GARBLED
    assert dominant_signature(summarise([judged()])) is None


@pytest.mark.parametrize(
    ("spans", "sizes"),
    [
        ([], []),
        ([(0, 1), (2, 3)], [1, 1]),
        ([(0, 2), (1, 3), (2.5, 4)], [3]),
        ([(0, 10), (1, 2), (3, 4)], [3]),
        ([(0, 1), (1, 2)], [1, 1]),
        ([(5, 6), (0, 1)], [1, 1]),
        ([(0, None), (100, 101)], [2]),
    ],
    ids=["none", "apart", "a chain", "within a long one", "touching", "out of order", "never ended"],
)
def test_bursts(spans, sizes):
    bursts = merge_bursts(judged(*CORRUPT, sent=start, ended=end) for start, end in spans)
    assert [len(burst.request_ids) for burst in bursts] == sizes
