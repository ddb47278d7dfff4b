"""What the report shows of each failing request, chosen and shaped for the template."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pdwatch.correctness import Difference
from pdwatch.gate.report.visible import Span, both_sides, first_difference, visible
from pdwatch.gate.rows import RequestRow

SHOWN_PER_KIND = 6
SHOWN_IN_ALL = 60
_SHOWN_TOP_TOKENS = 6
_CONTEXT_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class TopTokenBar:
    """One of the reference's likely tokens with its probability."""

    text: list[Span]
    probability: float


@dataclass(frozen=True, slots=True)
class DivergenceView:
    """Where the tokens part: the words around it, what came and what the reference would have said."""

    position: int
    before: list[Span]
    received: list[Span]
    after: list[Span]
    reference: list[Span]
    delta_nats: float
    rank: int | None
    unexplained: int
    scored: int
    top: list[TopTokenBar]


@dataclass(frozen=True, slots=True)
class FailureView:
    """One failing request."""

    row: RequestRow
    expected: list[Span]
    received: list[Span]
    first_difference: str | None
    findings: list[tuple[str, str, list[Span]]]
    divergence: DivergenceView | None


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failing requests of one arm, level and signature: all counted, the first few shown."""

    arm: str
    level: int
    signature: str
    count: int
    shown: list[FailureView]


def failure_groups(rows: Sequence[RequestRow]) -> list[FailureGroup]:
    """Measured failing requests, candidate first, then by level, the commonest signature first."""
    groups: defaultdict[tuple[str, int, str], list[RequestRow]] = defaultdict(list)
    for row in rows:
        if row.measured and row.failing:
            groups[row.arm, row.level, row.signature or "unnamed"].append(row)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != "candidate", item[0][1], -len(item[1])))
    left = SHOWN_IN_ALL
    views = []
    for (arm, level, signature), members in ordered:
        members.sort(key=lambda row: (row.judgement is None or row.judgement.difference is None, row.sent_seconds))
        shown = members[: min(SHOWN_PER_KIND, left)]
        left -= len(shown)
        views.append(FailureGroup(arm, level, signature, len(members), [_view(row) for row in shown]))
    return views


def _view(row: RequestRow) -> FailureView:
    judgement = row.judgement
    difference: Difference | None = None if judgement is None else judgement.difference
    expected, received = both_sides(difference) if difference is not None else ([], [])
    findings = [] if judgement is None else judgement.findings
    return FailureView(
        row=row,
        expected=expected,
        received=received,
        first_difference=None if difference is None else first_difference(difference),
        findings=[
            (finding.rung.value, finding.code, visible(finding.detail, 600))
            for finding in findings
            if finding.signature is not None
        ],
        divergence=_divergence(row),
    )


def _divergence(row: RequestRow) -> DivergenceView | None:
    evidence = None if row.judgement is None else row.judgement.divergence
    if evidence is None:
        return None
    return DivergenceView(
        position=evidence.position,
        before=visible(evidence.text_before[-_CONTEXT_CHARACTERS:]),
        received=visible(evidence.token_text, 40),
        after=visible(evidence.text_after, _CONTEXT_CHARACTERS),
        reference=visible(evidence.reference_text, 40),
        delta_nats=evidence.delta_nats,
        rank=evidence.rank,
        unexplained=evidence.unexplained_positions,
        scored=evidence.scored_positions,
        top=[
            TopTokenBar(visible(token.text, 40), math.exp(min(token.logprob, 0.0)))
            for token in row.top_tokens[:_SHOWN_TOP_TOKENS]
        ],
    )
