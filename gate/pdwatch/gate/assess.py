"""From judged requests to the verdict; pure functions, so that every rule is a row in a test table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pdwatch.correctness import LevelSummary, Outcome, Signature, lower_bound, summarise, upper_bound
from pdwatch.gate.compare import Comparison, ComparisonVerdict, Observation, compare, pool
from pdwatch.gate.names import BASELINE, CANDIDATE
from pdwatch.gate.percentage import percent
from pdwatch.gate.policy import GatePolicy
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.step_law import Point, decode_batches, fit_step_law
from pdwatch.gate.validity import client_checks, validity_checks
from pdwatch.gate.verdict import (
    ArmSummary,
    Check,
    LevelVerdict,
    Quantiles,
    Rate,
    Result,
    SignatureSummary,
    Verdict,
    worst,
)
from pdwatch.gate.wording import could_have_missed, headline

SLOW_DECODE = Signature.SLOW_DECODE.value
SLOW_FIRST_TOKEN = "slow_first_token"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the verdict must know about the run besides its requests.

    `cut_short` says in words why the run did not finish; None when it did. `running_batch` holds the largest
    decode batch seen by (arm, level). `asks_about_all` says that every answer could be put to the reference.
    `client` holds by level why the load generator was the limit there, nothing when it was not; a level that is not in
    it has not told.
    """

    levels: tuple[int, ...]
    has_baseline: bool
    reference_available: bool
    running_batch: Mapping[tuple[str, int], int]
    cut_short: str | None = None
    not_checked: tuple[str, ...] = ()
    asks_about_all: bool = False
    client: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def assess(rows: Sequence[RequestRow], facts: RunFacts, policy: GatePolicy) -> Verdict:
    """Judge every level, then the run."""
    measured = [row for row in rows if row.measured]
    pace = _Pace(rows, policy.load.seed)
    levels = tuple(_assess_level(level, measured, facts, policy, pace) for level in facts.levels)
    pooled = pool(
        [
            item
            for level in levels
            if level.level > 1 and not facts.client.get(level.level)
            for item in level.comparisons
            if item.metric == "tpot"
        ]
    )
    run_checks = _run_checks(facts, policy) + _pooled_checks(pooled)
    checks = run_checks + [check for level in levels for check in level.checks]
    reasons = tuple(
        check for result in (Result.FAIL, Result.INCONCLUSIVE) for check in checks if check.result is result
    )
    candidate = [row for row in measured if row.arm == CANDIDATE]
    overall = _corrupt_rate(candidate, policy.correctness.confidence)
    result = worst([check.result for check in checks])
    signatures = _signatures(candidate, levels, pooled)
    return Verdict(
        result=result,
        headline=headline(result, reasons, levels, signatures, overall, pooled),
        reasons=reasons,
        checks=tuple(run_checks),
        levels=levels,
        signatures=signatures,
        pooled_tpot=pooled,
        step_law=pace.law,
        overall_corrupt=overall,
        could_have_missed=could_have_missed(levels, overall, pooled, policy.correctness.confidence),
        not_checked=facts.not_checked,
    )


def _run_checks(facts: RunFacts, policy: GatePolicy) -> list[Check]:
    checks = []
    if facts.cut_short is not None:
        text = f"run was cut short: {facts.cut_short}"
        checks.append(Check(name="complete", level=None, result=Result.INCONCLUSIVE, text=text))
    if policy.validity.reference_required:
        available = facts.reference_available
        text = "the eager reference answered" if available else "the eager reference was not available"
        result = Result.PASS if available else Result.INCONCLUSIVE
        checks.append(Check(name="reference", level=None, result=result, text=text))
    return checks


def _pooled_checks(pooled: Comparison | None) -> list[Check]:
    if pooled is None or pooled.ratio is None or pooled.limit is None:
        return []
    worse = pooled.verdict is ComparisonVerdict.WORSE
    return [
        Check(
            name="tpot regression, levels above 1 together",
            level=None,
            result=Result.FAIL if worse else Result.PASS,
            text=f"×{pooled.ratio:.2f} of the baseline, {pooled.verdict.value}: {pooled.reason}",
            signature=SLOW_DECODE if worse else None,
        )
    ]


class _Pace:
    """TPOT of each request with what the baseline's step law gives at its batch."""

    def __init__(self, rows: Sequence[RequestRow], seed: int) -> None:
        self._batches = decode_batches(rows)
        self.law = fit_step_law(
            [
                Point(row.level, self._batches[row.request_id], row.time_per_output_token_seconds)
                for row in rows
                if row.measured
                and row.arm == BASELINE
                and row.time_per_output_token_seconds is not None
                and row.request_id in self._batches
            ],
            seed,
        )

    def observations(self, rows: Sequence[RequestRow]) -> list[Observation]:
        """TPOT of each request that has one and, where there is a law, a batch."""
        return [
            Observation(phase=row.phase, ended_seconds=row.ended_seconds, value=value, expected=expected)
            for row in rows
            if (value := row.time_per_output_token_seconds) is not None
            and (expected := self._expected(row.request_id)) is not None
        ]

    def _expected(self, request_id: str) -> float | None:
        if self.law is None:
            return 1.0
        batch = self._batches.get(request_id)
        return None if batch is None else self.law.expected_seconds(batch)


def _assess_level(
    level: int, measured: Sequence[RequestRow], facts: RunFacts, policy: GatePolicy, pace: _Pace
) -> LevelVerdict:
    arms = {arm: [row for row in measured if row.level == level and row.arm == arm] for arm in (CANDIDATE, BASELINE)}
    candidate = _summarise(arms[CANDIDATE], facts.running_batch.get((CANDIDATE, level)), policy)
    baseline = None
    comparisons: tuple[Comparison, ...] = ()
    if facts.has_baseline:
        baseline = _summarise(arms[BASELINE], facts.running_batch.get((BASELINE, level)), policy)
        comparisons = (
            _compare("tpot", _tpot(arms, pace), policy, policy.regression.tpot_ratio, level, pace.law is not None),
            _compare("ttft", _ttft(arms), policy, policy.regression.ttft_ratio, level),
        )
    checks = (
        *client_checks(level, facts.client),
        *validity_checks(level, candidate, policy, facts.asks_about_all and policy.validity.reference_required),
        *_correctness_checks(level, candidate, policy),
        *(_control_checks(level, baseline) if baseline else ()),
        *_regression_checks(level, comparisons, bool(facts.client.get(level))),
    )
    return LevelVerdict(
        level=level,
        result=worst([check.result for check in checks]),
        candidate=candidate,
        baseline=baseline,
        comparisons=comparisons,
        checks=checks,
    )


def _summarise(rows: Sequence[RequestRow], running_batch: int | None, policy: GatePolicy) -> ArmSummary:
    judged = summarise((row.judgement for row in rows if row.judgement), policy.correctness.confidence)
    summary: LevelSummary | None = judged[0] if judged else None
    return ArmSummary(
        measured=len(rows),
        scored=sum(row.scored for row in rows),
        outcomes={} if summary is None else {outcome.value: count for outcome, count in summary.outcomes.items()},
        signatures=_leading_first(rows),
        corrupt=_corrupt_rate(rows, policy.correctness.confidence),
        failure_bursts=0 if summary is None else summary.failure_bursts,
        running_batch=running_batch,
        unasked=sum(
            row.judgement is not None and row.outcome is Outcome.OK and not row.judgement.reference_used for row in rows
        ),
        tpot=_quantiles([row.time_per_output_token_seconds for row in rows]),
        ttft=_quantiles([row.time_to_first_token_seconds for row in rows]),
    )


def _leading_first(rows: Sequence[RequestRow]) -> dict[str, int]:
    """Signatures of failing requests: a leak leads, for a single one is proof that requests mix; then by number, and
    among equals the most specific first."""
    counts = Counter(row.signature for row in rows if row.failing and row.signature)
    precedence = [signature.value for signature in Signature]
    leak = Signature.LEAK.value
    return dict(sorted(counts.items(), key=lambda item: (item[0] != leak, -item[1], precedence.index(item[0]))))


def _corrupt_rate(rows: Sequence[RequestRow], confidence: float) -> Rate:
    trials = sum(row.scored for row in rows)
    count = sum(row.outcome is Outcome.CORRUPT for row in rows)
    if not trials:
        return Rate(count=0, trials=0, lower=None, upper=None)
    return Rate(
        count=count,
        trials=trials,
        lower=lower_bound(count, trials, confidence),
        upper=upper_bound(count, trials, confidence),
    )


def _quantiles(values: Sequence[float | None]) -> Quantiles:
    present = [value for value in values if value is not None]
    if not present:
        return Quantiles(count=0, p50=None, p99=None)
    p50, p99 = (float(value) for value in np.quantile(present, (0.5, 0.99)))
    return Quantiles(count=len(present), p50=p50, p99=p99)


def _correctness_checks(level: int, candidate: ArmSummary, policy: GatePolicy) -> list[Check]:
    limits = policy.correctness
    corrupt = candidate.corrupt
    protocol = candidate.outcomes.get(Outcome.PROTOCOL.value, 0)
    errors = candidate.outcomes.get(Outcome.ERROR.value, 0)
    error_ratio = errors / candidate.measured if candidate.measured else 0.0
    bound = (
        ""
        if corrupt.upper is None
        else f", at most {percent(corrupt.upper)} at {percent(limits.confidence)} confidence"
    )
    signatures = " + ".join(f"{name} ×{count}" for name, count in candidate.signatures.items())
    of_what = f" ({signatures})" if signatures else ""
    leading = next(iter(candidate.signatures), None)
    return [
        Check(
            name="corruption",
            level=level,
            result=Result.FAIL if corrupt.count > limits.max_corrupt else Result.PASS,
            text=f"{corrupt.count} of {corrupt.trials} scored answers corrupt{of_what if corrupt.count else ''}{bound}",
            signature=leading if corrupt.count else None,
        ),
        Check(
            name="protocol",
            level=level,
            result=Result.FAIL if protocol > limits.max_protocol else Result.PASS,
            text=f"{protocol} of {candidate.scored} answers broke the wire protocol{of_what if protocol else ''}",
            signature=leading if protocol else None,
        ),
        Check(
            name="errors",
            level=level,
            result=Result.FAIL if error_ratio > limits.max_error_ratio else Result.PASS,
            text=f"{errors} of {candidate.measured} requests ended in an error{of_what if errors else ''}",
            signature=leading if errors else None,
        ),
    ]


def _control_checks(level: int, baseline: ArmSummary) -> list[Check]:
    failing = sum(baseline.signatures.values())
    if not failing:
        return [
            Check(name="control", level=level, result=Result.PASS, text=f"baseline: {baseline.scored} scored, clean")
        ]
    names = " + ".join(f"{name} ×{count}" for name, count in baseline.signatures.items())
    text = f"the baseline shows {names} in {baseline.measured} requests: suspect the reference or both builds"
    return [Check(name="control", level=level, result=Result.INCONCLUSIVE, text=text)]


Arms = Mapping[str, Sequence[Observation]]


def _tpot(arms: Mapping[str, Sequence[RequestRow]], pace: _Pace) -> Arms:
    return {arm: pace.observations(rows) for arm, rows in arms.items()}


def _ttft(arms: Mapping[str, Sequence[RequestRow]]) -> Arms:
    return {
        arm: [
            Observation(phase=row.phase, ended_seconds=row.ended_seconds, value=row.time_to_first_token_seconds)
            for row in rows
            if row.time_to_first_token_seconds is not None
        ]
        for arm, rows in arms.items()
    }


def _compare(
    metric: str, arms: Arms, policy: GatePolicy, limit: float | None, level: int, at_equal_batch: bool = False
) -> Comparison:
    seed = policy.load.seed * 10_000 + level
    compared = compare(metric, arms[CANDIDATE], arms[BASELINE], policy.regression, limit, seed)
    return compared.model_copy(update={"at_equal_batch": at_equal_batch})


def _regression_checks(level: int, comparisons: Sequence[Comparison], client_was_the_limit: bool) -> list[Check]:
    checks = []
    for comparison in comparisons:
        if comparison.limit is None:
            continue
        worse = comparison.verdict is ComparisonVerdict.WORSE
        if client_was_the_limit:
            # what a client that could not keep up timed says nothing of the servers
            result, worse = Result.INCONCLUSIVE, False
        elif worse:
            result = Result.FAIL
        elif comparison.ratio is None:
            result = Result.INCONCLUSIVE
        else:
            # an interval that reaches over the limit is a power statement, kept under "could have missed"
            result = Result.PASS
        found = "" if comparison.ratio is None else f"×{comparison.ratio:.2f} of the baseline, "
        signature = SLOW_DECODE if comparison.metric == "tpot" else SLOW_FIRST_TOKEN
        checks.append(
            Check(
                name=f"{comparison.metric} regression",
                level=level,
                result=result,
                text=f"{found}{comparison.verdict.value}: {comparison.reason}",
                signature=signature if worse else None,
            )
        )
    return checks


def _signatures(
    candidate: Sequence[RequestRow], levels: Sequence[LevelVerdict], pooled: Comparison | None
) -> tuple[SignatureSummary, ...]:
    failing = sorted((row for row in candidate if row.failing), key=lambda row: (row.level, row.sent_seconds))
    summaries = []
    for signature, count in _leading_first(failing).items():
        first = next(row for row in failing if row.signature == signature)
        summaries.append(
            SignatureSummary(
                signature=signature, count=count, first_level=first.level, example_request_id=first.request_id
            )
        )
    for signature, metric in ((SLOW_DECODE, "tpot"), (SLOW_FIRST_TOKEN, "ttft")):
        slow = [level.level for level in levels if any(check.signature == signature for check in level.checks)]
        if not slow and metric == "tpot" and pooled is not None and pooled.verdict is ComparisonVerdict.WORSE:
            slow = _levels_above_limit(levels)
        if slow:
            summaries.append(
                SignatureSummary(signature=signature, count=len(slow), first_level=slow[0], example_request_id=None)
            )
    return tuple(summaries)


def _levels_above_limit(levels: Sequence[LevelVerdict]) -> list[int]:
    """Levels above 1 whose own TPOT ratio is above the limit: where a slow-down shows that only all together prove."""
    return [
        level.level
        for level in levels
        if level.level > 1
        and any(
            item.metric == "tpot" and item.ratio is not None and item.limit is not None and item.ratio > item.limit
            for item in level.comparisons
        )
    ]
