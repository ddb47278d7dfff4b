"""What came of the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"
    # the kernel does not claim what the check asks
    NOT_APPLICABLE = "does not apply"


EXIT_PASS, EXIT_FAIL, EXIT_INCONCLUSIVE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one kernel over all seeds. `detail` says what failed, or why it did not run."""

    kernel: str
    check: str
    guards: str
    outcome: Outcome
    detail: str
    seconds: float
    seeds: int
    failed_seeds: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        return self.outcome.value if not self.detail else f"{self.outcome.value}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one call."""

    results: tuple[CheckResult, ...]
    device: str
    first_seed: int
    seeds: int
    seconds: float
    versions: dict[str, str]

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)

    @property
    def exit_code(self) -> int:
        """1 if a check failed, 2 if one could not be run (or none was), otherwise 0."""
        if self.count(Outcome.FAIL):
            return EXIT_FAIL
        if self.count(Outcome.NOT_RUN) or not self.count(Outcome.PASS):
            return EXIT_INCONCLUSIVE
        return EXIT_PASS

    @property
    def verdict(self) -> str:
        return {EXIT_PASS: "PASS", EXIT_FAIL: "FAIL", EXIT_INCONCLUSIVE: "INCONCLUSIVE"}[self.exit_code]

    @property
    def headline(self) -> str:
        kernels = len({result.kernel for result in self.results})
        parts = [f"{self.count(outcome)} {words}" for outcome, words in _WORDS.items() if self.count(outcome)]
        return f"{kernels} kernel{'s' * (kernels != 1)} on {self.device}, {self.seeds} seeds: {', '.join(parts)}"

    def kernels(self) -> list[tuple[str, list[CheckResult]]]:
        """Results by kernel, in the order in which they were made."""
        names = dict.fromkeys(result.kernel for result in self.results)
        return [(name, [result for result in self.results if result.kernel == name]) for name in names]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        counts = Counter(result.outcome.value for result in self.results)
        return {
            "verdict": self.verdict,
            "headline": self.headline,
            "device": self.device,
            "first_seed": self.first_seed,
            "seeds": self.seeds,
            "seconds": round(self.seconds, 3),
            "versions": self.versions,
            "counts": dict(counts),
            "results": [_plain(result) for result in self.results],
        }


_WORDS = {
    Outcome.PASS: "passed",
    Outcome.FAIL: "failed",
    Outcome.NOT_RUN: "not run",
    Outcome.NOT_APPLICABLE: "do not apply",
}


def _plain(result: CheckResult) -> dict[str, Any]:
    record = asdict(result)
    return {**record, "outcome": result.outcome.value, "seconds": round(result.seconds, 3)}


def not_run(kernel: str, checks: Sequence[str], why: str) -> list[CheckResult]:
    return [CheckResult(kernel, check, "", Outcome.NOT_RUN, why, 0.0, 0) for check in checks]
