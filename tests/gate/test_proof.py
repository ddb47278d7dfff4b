from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pdwatch.gate.policy import GatePolicy
from pdwatch.gate.proof import Outcome, Trial, TrialFailed, run_trial, trials
from pdwatch.gate.run_folder import RunFolder, State
from pdwatch.gate.verdict import (
    ArmSummary,
    LevelVerdict,
    Quantiles,
    Rate,
    Result,
    SignatureSummary,
    Verdict,
)

NOTHING = Quantiles(count=0, p50=None, p99=None)
RATE = Rate(count=0, trials=10, lower=0.0, upper=0.26)
ARM = ArmSummary(
    measured=10,
    scored=10,
    outcomes={},
    signatures={},
    corrupt=RATE,
    failure_bursts=0,
    running_batch=1,
    tpot=NOTHING,
    ttft=NOTHING,
)


def verdict(result: Result, signatures: dict[str, int], level_one: Result = Result.PASS) -> Verdict:
    return Verdict(
        result=result,
        headline="as it went",
        reasons=(),
        checks=(),
        levels=(LevelVerdict(level=1, result=level_one, candidate=ARM, baseline=None, comparisons=(), checks=()),),
        signatures=tuple(
            SignatureSummary(signature=name, count=count, first_level=4, example_request_id=None)
            for name, count in signatures.items()
        ),
        pooled_tpot=None,
        overall_corrupt=RATE,
        could_have_missed=(),
        not_checked=(),
    )


FAULT = Trial("stale", 1, "stale", "wrong_value")
CLEAN = Trial("clean-01", 1)


@pytest.mark.parametrize(
    ("trial", "given", "complaint"),
    [
        pytest.param(CLEAN, verdict(Result.PASS, {}), None, id="clean and silent"),
        pytest.param(CLEAN, verdict(Result.INCONCLUSIVE, {}), "INCONCLUSIVE: as it went", id="clean, not sure"),
        pytest.param(CLEAN, verdict(Result.FAIL, {"leak": 1}), "FAIL: as it went", id="false alarm"),
        pytest.param(FAULT, verdict(Result.FAIL, {"wrong_value": 3, "garbled": 1}), None, id="caught"),
        pytest.param(FAULT, verdict(Result.PASS, {}), "PASS instead of FAIL", id="missed"),
        pytest.param(
            FAULT,
            verdict(Result.FAIL, {"garbled": 3}),
            "reported as garbled, not wrong_value",
            id="mistaken",
        ),
        pytest.param(
            FAULT,
            verdict(Result.FAIL, {"wrong_value": 3}, level_one=Result.FAIL),
            "level 1 fails too, where the fault is not active",
            id="level 1 not clean",
        ),
    ],
)
def test_a_trial_complains_of_what_is_not_as_it_must_be(trial: Trial, given: Verdict, complaint: str | None) -> None:
    assert Outcome(trial, given, 1.0).complaint == complaint


def test_clean_runs_have_seeds_of_their_own_and_faults_share_the_first() -> None:
    wanted = trials(2, [("stale", "wrong_value")], first_seed=5)
    assert wanted == [Trial("clean-01", 5), Trial("clean-02", 6), Trial("stale", 5, "stale", "wrong_value")]


def test_a_gate_that_cannot_run_ends_the_proof_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "gate"
    script.write_text("#!/bin/sh\necho 'error: no such weights' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(TrialFailed, match="trial clean-01 could not run: error: no such weights"):
        run_trial(CLEAN, tmp_path, ())


def test_an_interrupted_trial_is_set_aside_and_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "gate"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    for state in (State.RUNNING, State.FAILED):
        RunFolder.create(tmp_path / "clean-01", GatePolicy(), embedded=True).update(state=state)
        with pytest.raises(TrialFailed):
            run_trial(CLEAN, tmp_path, ())
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert kept == ["clean-01-interrupted-1", "clean-01-interrupted-2"]


def test_a_finished_trial_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    folder = RunFolder.create(tmp_path / "clean-01", GatePolicy(), embedded=True)
    folder.update(state=State.COMPLETE)
    folder.verdict.write_text(verdict(Result.PASS, {}).model_dump_json())
    assert run_trial(CLEAN, tmp_path, ()) == Outcome(CLEAN, verdict(Result.PASS, {}), None)
