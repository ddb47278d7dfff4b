"""The rules of the verdict, each as a row: what happened, what is said, at which level, with which exit code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pdwatch.correctness import Outcome, Signature
from pdwatch.gate.assess import RunFacts, assess
from pdwatch.gate.policy import GatePolicy, load_policy
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.verdict import Result, Verdict

Make = Callable[..., RequestRow]

BATCHES = {("candidate", 1): 1, ("candidate", 4): 4, ("baseline", 1): 1, ("baseline", 4): 4}


def facts(**changes: object) -> RunFacts:
    values: dict[str, object] = {
        "levels": (1, 4),
        "has_baseline": False,
        "reference_available": True,
        "running_batch": BATCHES,
    }
    return RunFacts(**(values | changes))  # type: ignore[arg-type]  # fields by name


def clean(row: Make, count: int = 10, **changes: object) -> list[RequestRow]:
    return [row(number, level=level, phase=level, **changes) for level in (1, 4) for number in range(count)]


def names(verdict: Verdict) -> list[tuple[str, int | None, str]]:
    return [(check.name, check.level, check.result.value) for check in verdict.reasons]


def test_clean_levels_pass_with_their_bounds(row: Make) -> None:
    verdict = assess(clean(row), facts(), load_policy())
    assert (verdict.result, verdict.exit_code, verdict.reasons) == (Result.PASS, 0, ())
    # 0 of 10: 1 - 0.05^(1/10) = 0.2589; 0 of 20: 1 - 0.05^(1/20) = 0.1391
    assert verdict.levels[0].candidate.corrupt.upper == pytest.approx(0.2589, abs=1e-4)
    assert verdict.overall_corrupt.upper == pytest.approx(0.1391, abs=1e-4)
    assert "No corruption seen in 20 scored answers at levels 1, 4" in verdict.headline
    assert "fewer than 14 % of answers" in verdict.could_have_missed[0]


@pytest.mark.parametrize(
    ("outcome", "signature", "check", "named"),
    [
        (Outcome.CORRUPT, Signature.WRONG_VALUE, "corruption", "wrong_value"),
        (Outcome.CORRUPT, Signature.LEAK, "corruption", "leak"),
        (Outcome.CORRUPT, Signature.TRUNCATED, "corruption", "truncated"),
        (Outcome.PROTOCOL, Signature.PROTOCOL, "protocol", "protocol"),
        (Outcome.ERROR, Signature.ERROR, "errors", "error"),
        (Outcome.ERROR, None, "errors", "error"),
    ],
    ids=["wrong-value", "leak", "truncated", "protocol", "error", "error-without-signature"],
)
def test_one_bad_answer_fails_its_level(
    row: Make, outcome: Outcome, signature: Signature | None, check: str, named: str
) -> None:
    bad = row(99, level=4, phase=4, outcome=outcome, signature=signature)
    verdict = assess([*clean(row), bad], facts(), load_policy())
    assert (verdict.result, verdict.exit_code) == (Result.FAIL, 1)
    assert names(verdict) == [(check, 4, "FAIL")]
    assert [(each.signature, each.count, each.first_level) for each in verdict.signatures] == [(named, 1, 4)]
    assert verdict.signatures[0].example_request_id == "candidate-4-measured-99"
    assert verdict.headline == f"{named} from level 4: 1 of 11 requests there. Level 1 clean."


@pytest.mark.parametrize(
    "outcome",
    [Outcome.OK, Outcome.BENIGN_DIVERGENCE, Outcome.MODEL_ERROR, Outcome.CANCELLED],
    ids=lambda outcome: outcome.value,
)
def test_what_is_no_fault_of_the_deployment_passes(row: Make, outcome: Outcome) -> None:
    assert assess([*clean(row), row(99, phase=4, outcome=outcome)], facts(), load_policy()).result is Result.PASS


@pytest.mark.parametrize("label", ["warmup", "cooldown"])
def test_only_measured_requests_count(row: Make, label: str) -> None:
    bad = row(99, phase=4, label=label, outcome=Outcome.CORRUPT, signature=Signature.LEAK)
    verdict = assess([*clean(row), bad], facts(), load_policy())
    assert verdict.result is Result.PASS
    assert verdict.levels[1].candidate.measured == 10


INCONCLUSIVE = [
    pytest.param({}, {"validity.min_scored": 11}, ("scored", 1), id="too-few-scored"),
    pytest.param({"running_batch": {("candidate", 4): 1}}, {}, ("running batch", 4), id="batch-1-only"),
    pytest.param({"running_batch": {}}, {}, ("running batch", 4), id="batch-unknown"),
    pytest.param({"reference_available": False}, {}, ("reference", None), id="no-reference"),
    pytest.param({"cut_short": "decode-0 was killed by SIGKILL"}, {}, ("complete", None), id="cut-short"),
    pytest.param({"levels": (1, 4, 16)}, {}, ("scored", 16), id="level-never-run"),
]


@pytest.mark.parametrize(("changes", "options", "reason"), INCONCLUSIVE)
def test_a_run_that_proves_nothing_is_inconclusive(
    row: Make, changes: dict[str, object], options: dict[str, object], reason: tuple[str, int | None]
) -> None:
    verdict = assess(clean(row), facts(**changes), load_policy(options=options))
    assert (verdict.result, verdict.exit_code) == (Result.INCONCLUSIVE, 2)
    assert reason in [(check.name, check.level) for check in verdict.reasons]
    assert verdict.headline.startswith("The run cannot vouch")


def test_an_unscored_answer_is_told_with_its_level(row: Make) -> None:
    verdict = assess([*clean(row), row(99, phase=4, outcome=Outcome.UNSCORED)], facts(), load_policy())
    assert names(verdict) == [("unscored", 4, "INCONCLUSIVE")]


def test_a_failure_stands_in_a_run_that_is_too_thin_and_all_reasons_are_listed(row: Make) -> None:
    rows = [row(0, level=4, phase=4, outcome=Outcome.CORRUPT, signature=Signature.GARBLED)]
    verdict = assess(rows, facts(reference_available=False, cut_short="stopped by SIGINT"), load_policy())
    assert verdict.result is Result.FAIL
    assert names(verdict) == [
        ("corruption", 4, "FAIL"),
        ("complete", None, "INCONCLUSIVE"),
        ("reference", None, "INCONCLUSIVE"),
        ("scored", 1, "INCONCLUSIVE"),
        ("scored", 4, "INCONCLUSIVE"),
    ]


def test_a_reference_can_be_declared_unneeded(row: Make) -> None:
    policy = load_policy(assignments=["validity.reference_required=false"])
    assert assess(clean(row), facts(reference_available=False), policy).result is Result.PASS


def test_a_leak_leads_then_the_commonest_and_each_begins_at_its_first_level(row: Make) -> None:
    rows = clean(row)
    rows += [row(10 + n, level=4, phase=4, outcome=Outcome.CORRUPT, signature=Signature.GARBLED) for n in range(2)]
    rows += [row(20 + n, level=4, phase=4, outcome=Outcome.CORRUPT, signature=Signature.WRONG_VALUE) for n in range(3)]
    rows += [row(30, level=1, phase=1, outcome=Outcome.CORRUPT, signature=Signature.LEAK)]
    verdict = assess(rows, facts(), load_policy())
    assert [(each.signature, each.count, each.first_level) for each in verdict.signatures] == [
        ("leak", 1, 1),
        ("wrong_value", 3, 4),
        ("garbled", 2, 4),
    ]


@pytest.mark.parametrize(("wrong", "result"), [(2, Result.PASS), (3, Result.INCONCLUSIVE)], ids=["2 of 12", "3 of 13"])
def test_answers_that_the_reference_gets_wrong_too_are_bounded(row: Make, wrong: int, result: Result) -> None:
    # clean gives ten answers a level; the limit is 0.2: 2 / 12 = 0.17, 3 / 13 = 0.23.
    errors = [row(50 + n, level=4, phase=4, outcome=Outcome.MODEL_ERROR) for n in range(wrong)]
    verdict = assess(clean(row) + errors, facts(), load_policy())
    assert verdict.result is result
    assert (("model errors", 4, "INCONCLUSIVE") in names(verdict)) is (result is Result.INCONCLUSIVE)


def test_a_dirty_control_arm_is_told(row: Make) -> None:
    rows = clean(row) + clean(row, arm="baseline")
    rows.append(row(99, arm="baseline", phase=5, outcome=Outcome.CORRUPT, signature=Signature.LEAK))
    verdict = assess(rows, facts(has_baseline=True), load_policy(assignments=["regression.block_seconds=0.4"]))
    assert ("control", 4, "INCONCLUSIVE") in names(verdict)
    assert verdict.result is Result.INCONCLUSIVE


def slow_run(row: Make, factor: float) -> list[RequestRow]:
    """40 requests a phase, one every 0.2 s: baseline, candidate, baseline at both levels; slow above level 1 only."""
    rows = []
    for index, level in enumerate((1, 4)):
        for place, arm in enumerate(("baseline", "candidate", "baseline")):
            slow = factor if arm == "candidate" and level > 1 else 1.0
            start = index * 100 + place * 30
            for number in range(40):
                noise = 1 + 0.02 * ((number * 7) % 5 - 2)
                rows.append(
                    row(
                        number,
                        arm=arm,
                        level=level,
                        phase=index * 3 + place,
                        sent_seconds=start + number * 0.2,
                        tpot_seconds=0.010 * slow * noise,
                    )
                )
    return rows


@pytest.mark.parametrize(("factor", "result"), [(1.0, Result.PASS), (1.3, Result.FAIL)], ids=["same", "slow"])
def test_a_slow_decode_step_fails_above_level_1(row: Make, factor: float, result: Result) -> None:
    verdict = assess(slow_run(row, factor), facts(has_baseline=True), load_policy())
    assert verdict.result is result
    slow = [(each.signature, each.first_level) for each in verdict.signatures]
    assert slow == ([("slow_decode", 4)] if result is Result.FAIL else [])
    assert verdict.levels[0].result is Result.PASS
    if result is Result.FAIL:
        assert verdict.headline.startswith("slow_decode from level 4: TPOT ×1.30")


def test_ttft_is_shown_and_not_gated_unless_asked(row: Make) -> None:
    rows = slow_run(row, 1.0)
    ttft = [item for item in assess(rows, facts(has_baseline=True), load_policy()).levels[0].comparisons][1]
    assert (ttft.metric, ttft.limit) == ("ttft", None)
    policy: GatePolicy = load_policy(assignments=["regression.ttft_ratio=1.5"])
    checks = assess(rows, facts(has_baseline=True), policy).levels[0].checks
    assert "ttft regression" in [check.name for check in checks]


LIMITED = {1: (), 4: ("candidate: loop lag p99 130 ms is over 100 ms",)}


def test_a_level_that_the_client_limited_proves_nothing(row: Make) -> None:
    verdict = assess(clean(row), facts(client=LIMITED), load_policy())
    assert names(verdict) == [("client", 4, "INCONCLUSIVE")]
    assert verdict.reasons[0].text == "the client was the limit: candidate: loop lag p99 130 ms is over 100 ms"
    assert [level.result for level in verdict.levels] == [Result.PASS, Result.INCONCLUSIVE]
    assert verdict.levels[0].checks[0].text == "the client kept up"


def test_corruption_stands_whatever_the_client(row: Make) -> None:
    bad = row(99, level=4, phase=4, outcome=Outcome.CORRUPT, signature=Signature.LEAK)
    verdict = assess([*clean(row), bad], facts(client=LIMITED), load_policy())
    assert names(verdict) == [("corruption", 4, "FAIL"), ("client", 4, "INCONCLUSIVE")]


def test_a_client_at_its_limit_finds_no_slow_down(row: Make) -> None:
    verdict = assess(slow_run(row, 1.3), facts(has_baseline=True, client=LIMITED), load_policy())
    assert (verdict.result, verdict.signatures, verdict.pooled_tpot) == (Result.INCONCLUSIVE, (), None)
    assert ("tpot regression", 4, "INCONCLUSIVE") in names(verdict)


def test_a_baseline_that_never_ran_is_inconclusive(row: Make) -> None:
    verdict = assess(clean(row), facts(has_baseline=True), load_policy())
    assert verdict.result is Result.INCONCLUSIVE
    assert ("tpot regression", 4, "INCONCLUSIVE") in names(verdict)
