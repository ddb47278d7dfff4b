"""The verdict of a run: per level, per check, with every reason listed.

Order of the checks: validity, correctness, regression. A failure that was seen stands even when the run is
otherwise too thin to be trusted, so FAIL outranks INCONCLUSIVE; both kinds of reason are listed.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from pdwatch.gate.compare import Comparison
from pdwatch.gate.step_law import StepLaw

SCHEMA = "pdwatch.verdict/1"


class Result(StrEnum):
    """Result of one check, or of the whole run. The exit codes are in `EXIT_CODES`."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


EXIT_CODES = {Result.PASS: 0, Result.FAIL: 1, Result.INCONCLUSIVE: 2}


class Record(BaseModel):
    """Base of what `verdict.json` holds."""

    model_config = ConfigDict(frozen=True)


class Check(Record):
    """One check at one level (None: of the whole run), with its result in words."""

    name: str
    level: int | None
    result: Result
    text: str
    signature: str | None = None


class Rate(Record):
    """`count` of `trials` with the two one-sided Clopper-Pearson bounds; bounds are None without trials."""

    count: int
    trials: int
    lower: float | None
    upper: float | None

    @property
    def share(self) -> float | None:
        """count / trials; None without trials."""
        return self.count / self.trials if self.trials else None


class Quantiles(Record):
    """Latency of one metric, in seconds; None without a single value."""

    count: int
    p50: float | None
    p99: float | None


class ArmSummary(Record):
    """What one arm did at one level, measured requests only.

    `signatures` counts failing requests, a leak first, then the commonest; `failure_bursts` counts corrupt requests
    that overlap in time as one; `unasked` counts answers taken for right without the reference; `running_batch` is the
    largest decode batch seen, None when nobody told.
    """

    measured: int
    scored: int
    outcomes: dict[str, int]
    signatures: dict[str, int]
    corrupt: Rate
    failure_bursts: int
    running_batch: int | None
    unasked: int = 0
    tpot: Quantiles
    ttft: Quantiles


class LevelVerdict(Record):
    """One level: both arms, the comparisons, and the checks with the worst result on top."""

    level: int
    result: Result
    candidate: ArmSummary
    baseline: ArmSummary | None
    comparisons: tuple[Comparison, ...]
    checks: tuple[Check, ...]


class SignatureSummary(Record):
    """One kind of failure: how often, from which level on, and one request to look at."""

    signature: str
    count: int
    first_level: int
    example_request_id: str | None


class Verdict(Record):
    """What `verdict.json` holds. `checks` are run-wide; a level's own are in the level, and `reasons` are all that
    did not pass, FAIL first."""

    schema_name: str = SCHEMA
    result: Result
    headline: str
    reasons: tuple[Check, ...]
    checks: tuple[Check, ...]
    levels: tuple[LevelVerdict, ...]
    signatures: tuple[SignatureSummary, ...]
    pooled_tpot: Comparison | None
    step_law: StepLaw | None = None
    overall_corrupt: Rate
    could_have_missed: tuple[str, ...]
    not_checked: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 2 INCONCLUSIVE."""
        return EXIT_CODES[self.result]


def worst(results: list[Result]) -> Result:
    """FAIL before INCONCLUSIVE before PASS; PASS for an empty list."""
    for result in (Result.FAIL, Result.INCONCLUSIVE):
        if result in results:
            return result
    return Result.PASS
