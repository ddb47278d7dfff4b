"""Proof of the detector: a gate run for every fault, which must fail as the fault says, and runs without one.

A detector nobody has seen fire proves nothing by its silence. Each trial is a whole `pdwatch gate` in a process of its
own; a trial whose run folder already holds a finished verdict is read, not run again.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdwatch.gate.errors import GateError
from pdwatch.gate.run_folder import RunFolder, State
from pdwatch.gate.verdict import Result, Verdict


class TrialFailed(GateError):
    """A trial could not run; the message has the gate's own last line."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One gate run: `fault` None is a clean one; `signature` is what the fault must be reported as."""

    name: str
    seed: int
    fault: str | None = None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial with its verdict. `seconds` is None when the verdict was found, not made."""

    trial: Trial
    verdict: Verdict
    seconds: float | None

    @property
    def signature(self) -> str | None:
        """The leading signature: a leak if there is one, else the commonest; else that of the failing check."""
        return self.verdict.signatures[0].signature if self.verdict.signatures else None

    @property
    def first_level(self) -> int | None:
        """The lowest level with a failure."""
        return min((each.first_level for each in self.verdict.signatures), default=None)

    @property
    def complaint(self) -> str | None:
        """What is not as it must be; None when all is."""
        if self.trial.fault is None:
            return None if self.verdict.result is Result.PASS else f"{self.verdict.result}: {self.verdict.headline}"
        if self.verdict.result is not Result.FAIL:
            return f"{self.verdict.result} instead of FAIL"
        if self.signature != self.trial.signature:
            return f"reported as {self.signature}, not {self.trial.signature}"
        if any(each.level == 1 and each.result is Result.FAIL for each in self.verdict.levels):
            return "level 1 fails too, where the fault is not active"
        return None

    def describe(self) -> dict[str, object]:
        """The row of the proof's table, as JSON values."""
        return {
            "trial": self.trial.name,
            "seed": self.trial.seed,
            "result": self.verdict.result.value,
            "signature": self.signature,
            "failing": {each.signature: each.count for each in self.verdict.signatures},
            "first_level": self.first_level,
            "scored": self.verdict.overall_corrupt.trials,
            "tpot_ratio": None if self.verdict.pooled_tpot is None else self.verdict.pooled_tpot.ratio,
            "seconds": self.seconds,
            "complaint": self.complaint,
        }


def trials(clean: int, faults: Sequence[tuple[str, str]], first_seed: int) -> list[Trial]:
    """Clean runs with rising seeds and one run for each (name, signature) of `faults`."""
    healthy = [Trial(f"clean-{number + 1:02d}", first_seed + number) for number in range(clean)]
    return [*healthy, *(Trial(name, first_seed, name, signature) for name, signature in faults)]


def run_trial(trial: Trial, directory: Path, options: Sequence[str]) -> Outcome:
    """The trial's verdict; `options` are passed on to `pdwatch gate`. Raises TrialFailed.

    The folder of a trial that was interrupted is kept as `<name>-interrupted-<n>`, and the trial runs again.
    """
    out = directory / trial.name
    finished = _finished_verdict(out)
    if finished is not None:
        return Outcome(trial, finished, None)
    if (out / "run.json").exists():
        _set_aside(out)
    fault = [] if trial.fault is None else ["--fault", trial.fault]
    command = [sys.executable, "-P", "-m", "pdwatch.gate.cli", "gate", "--out", str(out), "--seed", str(trial.seed)]
    started = time.monotonic()
    run = subprocess.run([*command, *fault, "--quiet", *options], capture_output=True, text=True, check=False)
    verdict = _finished_verdict(out)
    if verdict is None or run.returncode != verdict.exit_code:
        lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        raise TrialFailed(f"trial {trial.name} could not run: {lines[-1]}; its folder is {out}")
    return Outcome(trial, verdict, time.monotonic() - started)


def _set_aside(out: Path) -> None:
    names = (out.with_name(f"{out.name}-interrupted-{number}") for number in itertools.count(1))
    out.rename(next(name for name in names if not name.exists()))


def _finished_verdict(out: Path) -> Verdict | None:
    if not (out / "run.json").exists():
        return None
    folder = RunFolder.open(out)
    if folder.record.state is not State.COMPLETE or not folder.verdict.exists():
        return None
    return Verdict.model_validate_json(folder.verdict.read_bytes())
