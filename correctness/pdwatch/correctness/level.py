"""What a level shows: outcomes counted, none dropped, with the exact bound that the count carries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pdwatch.correctness.bounds import CONFIDENCE, Interval, clopper_pearson, statement, upper_bound
from pdwatch.correctness.bursts import merge_bursts
from pdwatch.correctness.outcome import PRECEDENCE, Judgement, Outcome, Signature

# an answer of these outcomes was looked at to the end.
SCORED = (Outcome.OK, Outcome.BENIGN_DIVERGENCE, Outcome.MODEL_ERROR, Outcome.CORRUPT, Outcome.PROTOCOL)
FAILED = (Outcome.CORRUPT, Outcome.PROTOCOL, Outcome.ERROR)


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """Measured requests of one arm at one level.

    `outcomes` and `signatures` hold only what occurred. The corruption rate is corrupt / scored; `worst_case_upper`
    bounds it with every error and unscored request taken for corrupt. `failure_bursts` counts corrupt requests that
    overlap in time as one: when it is much smaller than `corrupt`, the bound per request promises too much.
    """

    arm: str
    level: int
    requests: int
    outcomes: Mapping[Outcome, int]
    signatures: Mapping[Signature, int]
    confidence: float
    failure_bursts: int

    @property
    def corrupt(self) -> int:
        return self.outcomes.get(Outcome.CORRUPT, 0)

    @property
    def scored(self) -> int:
        return sum(self.outcomes.get(outcome, 0) for outcome in SCORED)

    @property
    def failed(self) -> int:
        """Corrupt, protocol and error together."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILED)

    @property
    def rate(self) -> float | None:
        """Corrupt requests a scored request; None when nothing was scored."""
        return self.corrupt / self.scored if self.scored else None

    @property
    def upper(self) -> float:
        """One-sided upper bound of the corruption rate at `confidence`."""
        return upper_bound(self.corrupt, self.scored, self.confidence)

    @property
    def interval(self) -> Interval:
        """Two-sided Clopper–Pearson interval of the corruption rate at `confidence`."""
        return clopper_pearson(self.corrupt, self.scored, self.confidence)

    @property
    def worst_case_upper(self) -> float:
        unknown = self.outcomes.get(Outcome.ERROR, 0) + self.outcomes.get(Outcome.UNSCORED, 0)
        return upper_bound(self.corrupt + unknown, self.scored + unknown, self.confidence)

    @property
    def statement(self) -> str:
        """The bound in words, with the bursts where there are any."""
        words = statement(self.corrupt, self.scored, self.confidence)
        if self.failure_bursts:
            words += f", in {self.failure_bursts} burst{'' if self.failure_bursts == 1 else 's'}"
        return words

    @property
    def dominant_signature(self) -> Signature | None:
        """The commonest signature; among equals the most specific."""
        return dominant_signature([self])

    def to_json(self) -> dict[str, Any]:
        interval = self.interval
        return {
            "arm": self.arm,
            "level": self.level,
            "requests": self.requests,
            "outcomes": {outcome.value: count for outcome, count in self.outcomes.items()},
            "signatures": {signature.value: count for signature, count in self.signatures.items()},
            "scored": self.scored,
            "corrupt": self.corrupt,
            "failed": self.failed,
            "rate": self.rate,
            "confidence": self.confidence,
            "upper": self.upper,
            "interval": [interval.lower, interval.upper],
            "worst_case_upper": self.worst_case_upper,
            "failure_bursts": self.failure_bursts,
            "statement": self.statement,
        }


def summarise(judgements: Iterable[Judgement], confidence: float = CONFIDENCE) -> tuple[LevelSummary, ...]:
    """One summary for each arm and level with measured requests, ordered by arm, then level."""
    groups: defaultdict[tuple[str, int], list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        if judgement.measured:
            groups[judgement.arm, judgement.level].append(judgement)
    return tuple(_summary(arm, level, groups[arm, level], confidence) for arm, level in sorted(groups))


def first_corrupt_level(summaries: Iterable[LevelSummary], arm: str) -> int | None:
    """The lowest level of an arm with a corrupt request; None when there is none."""
    return min((summary.level for summary in summaries if summary.arm == arm and summary.corrupt), default=None)


def dominant_signature(summaries: Iterable[LevelSummary]) -> Signature | None:
    """The commonest signature over several levels; among equals the most specific, None when nothing failed."""
    counts: Counter[Signature] = Counter()
    for summary in summaries:
        counts.update(summary.signatures)
    return max(counts, key=lambda signature: (counts[signature], -PRECEDENCE.index(signature)), default=None)


def _summary(arm: str, level: int, judgements: list[Judgement], confidence: float) -> LevelSummary:
    outcomes = Counter(judgement.outcome for judgement in judgements)
    signatures = Counter(judgement.signature for judgement in judgements if judgement.signature is not None)
    return LevelSummary(
        arm=arm,
        level=level,
        requests=len(judgements),
        outcomes={outcome: outcomes[outcome] for outcome in Outcome if outcomes[outcome]},
        signatures={signature: signatures[signature] for signature in Signature if signatures[signature]},
        confidence=confidence,
        failure_bursts=len(merge_bursts(judgement for judgement in judgements if judgement.corrupt)),
    )
