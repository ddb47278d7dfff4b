"""A phase in figures, all taken from the same window.

Latency: complete requests of the measured part that were sent inside the window. Load goes on until the last of them
has ended, so long ones are not cut off. Outcomes, error share and goodput: all measured requests sent inside it, failed
ones too; those that we ourselves gave up on are told apart and in no share. Rates: whatever ended, and every token that
arrived, inside the window, of requests of any label; a request's tokens are spread evenly over its decode window.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from .bounds import estimate_share
from .definitions import METRICS
from .percentiles import in_order, of_ordered
from .row import RequestRow
from .slo import Slo
from .steady import Window, in_flight_mean
from .transcript import Label, Outcome

CONFIDENCE: Final = 0.95
# of what else came nobody expects the protocol.
_ANSWERED: Final = (Outcome.COMPLETE, Outcome.TRUNCATED, Outcome.IN_BAND_ERROR, Outcome.EMPTY)
PERCENTS: Final = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Distribution(_Frozen):
    """Raw values in figures; percentiles are exact (linear interpolation between order statistics)."""

    count: int
    mean: float
    smallest: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    p999: float
    largest: float

    @classmethod
    def of(cls, values: array[float]) -> Self | None:
        """The figures of some values; None for no values."""
        if not values:
            return None
        ordered = in_order(values)
        return cls(
            count=len(ordered),
            mean=math.fsum(values) / len(values),
            smallest=ordered[0],
            largest=ordered[-1],
            **{name: of_ordered(ordered, percent) for name, percent in PERCENTS.items()},
        )


class Goodput(_Frozen):
    """Requests that kept to the SLO: `good` of `eligible`, all that were sent and not given up on by us.

    `lower` and `upper` are one-sided 95 % bounds of the share, for requests that fare alike when they run together;
    `effective_trials` says how many independent ones they are worth. `broken` counts complete requests by the limit
    that they did not keep to. `per_second` counts good requests that ended inside the window.
    """

    slo: str
    good: int
    eligible: int
    share: float | None
    lower: float
    upper: float
    effective_trials: float
    blocks: int
    per_second: float | None
    broken: Mapping[str, int]


class PhaseSummary(_Frozen):
    """See the module. Absent is None or a missing key, never 0.

    `examples` has one failure of each class, warm-up and cool-down included. `latencies` are distributions by the names
    of METRICS. `without_usage` counts complete requests whose tokens nobody counted: the token rates lack them.
    `token_bases` counts requests by how their ITL is known, `defects` answers that show a defect, by its code.
    """

    window: Window
    sent: int
    complete: int
    cancelled: int
    failed: int
    error_share: float | None
    outcomes: Mapping[str, int]
    examples: Mapping[str, str]
    sent_per_second: float | None
    complete_per_second: float | None
    output_tokens_per_second: float | None
    prompt_tokens_per_second: float | None
    in_flight_mean: float | None
    goodput: Goodput | None
    latencies: Mapping[str, Distribution]
    token_bases: Mapping[str, int]
    without_usage: int
    defects: Mapping[str, int]

    def to_record(self) -> dict[str, Any]:
        """As JSON values."""
        return self.model_dump(mode="json")


def summarise(rows: Sequence[RequestRow], window: Window, slo: Slo | None = None) -> PhaseSummary:
    """The summary of one phase from all of its rows, whatever their label and order."""
    sent = sorted((row for row in rows if _counts(row, window)), key=lambda row: row.sent_seconds)
    complete = [row for row in sent if row.outcome is Outcome.COMPLETE]
    outcomes = Counter(row.outcome.value for row in sent)
    cancelled = outcomes[Outcome.CANCELLED.value]
    failed = len(sent) - len(complete) - cancelled
    ended = [row for row in rows if row.outcome is Outcome.COMPLETE and _is_inside(row.ended_seconds, window)]
    in_flight = in_flight_mean(rows, window.starts_seconds, window.ends_seconds)
    return PhaseSummary(
        window=window,
        sent=len(sent),
        complete=len(complete),
        cancelled=cancelled,
        failed=failed,
        error_share=failed / (len(sent) - cancelled) if len(sent) > cancelled else None,
        outcomes=dict(outcomes),
        examples=_examples(rows),
        sent_per_second=_rate(sum(_is_inside(row.sent_seconds, window) for row in rows), window),
        complete_per_second=_rate(len(ended), window),
        output_tokens_per_second=_rate(_output_tokens(rows, window), window),
        prompt_tokens_per_second=_rate(_prompt_tokens(rows, window), window),
        in_flight_mean=in_flight,
        goodput=None if slo is None else _goodput(slo, sent, ended, in_flight or 0.0, window),
        latencies=_latencies(complete),
        token_bases=dict(Counter(row.inter_token_basis for row in complete if row.inter_token_basis is not None)),
        without_usage=sum(row.output_tokens is None for row in complete),
        defects=dict(Counter(code for row in sent if row.outcome in _ANSWERED for code in row.defects)),
    )


def margins(rows: Sequence[RequestRow], window: Window, slo: Slo) -> list[float]:
    """How much of its limits each measured request inside the window took (see `Slo.margin`), in order of sending,
    without those that we gave up on."""
    sent = sorted((row for row in rows if _counts(row, window)), key=lambda row: row.sent_seconds)
    return [slo.margin(row) for row in sent if row.outcome is not Outcome.CANCELLED]


def _counts(row: RequestRow, window: Window) -> bool:
    # the label is chosen a moment before sending: without a window of its own the label is what counts.
    return row.label is Label.MEASURED and (not window.is_steady or _is_inside(row.sent_seconds, window))


def _is_inside(seconds: float, window: Window) -> bool:
    return window.starts_seconds <= seconds < window.ends_seconds


def _rate(amount: float, window: Window) -> float | None:
    return amount / window.seconds if window.seconds > 0 else None


def _examples(rows: Sequence[RequestRow]) -> dict[str, str]:
    examples: dict[str, str] = {}
    for row in rows:
        if row.outcome not in (Outcome.COMPLETE, Outcome.CANCELLED):
            examples.setdefault(row.outcome.value, row.outcome_detail)
    return examples


def _output_tokens(rows: Sequence[RequestRow], window: Window) -> float:
    tokens = 0.0
    for row in rows:
        if row.output_tokens is None or row.end_to_end_seconds is None:
            continue
        last = row.sent_seconds + row.end_to_end_seconds
        length = row.decode_window_seconds or 0.0
        if not length:
            tokens += row.output_tokens * _is_inside(last, window)
            continue
        overlap = min(last, window.ends_seconds) - max(last - length, window.starts_seconds)
        tokens += row.output_tokens * max(0.0, overlap) / length
    return tokens


def _prompt_tokens(rows: Sequence[RequestRow], window: Window) -> int:
    """Prompt tokens whose prefill ended, as the first token tells, inside the window."""
    return sum(
        row.prompt_tokens or 0
        for row in rows
        if (seconds := row.time_to_first_token_seconds or row.end_to_end_seconds) is not None
        and _is_inside(row.sent_seconds + seconds, window)
    )


def _goodput(
    slo: Slo, sent: Sequence[RequestRow], ended: Sequence[RequestRow], in_flight: float, window: Window
) -> Goodput:
    estimate = estimate_share([slo.margin(row) for row in sent if row.outcome is not Outcome.CANCELLED], in_flight)
    return Goodput(
        slo=str(slo),
        good=estimate.good,
        eligible=estimate.trials,
        share=estimate.share,
        lower=estimate.lower(CONFIDENCE),
        upper=estimate.upper(CONFIDENCE),
        effective_trials=estimate.effective_trials,
        blocks=estimate.blocks,
        per_second=_rate(sum(map(slo.is_met, ended)), window),
        broken=dict(Counter(name for row in sent if row.outcome is Outcome.COMPLETE for name in slo.broken(row))),
    )


def _latencies(complete: Sequence[RequestRow]) -> dict[str, Distribution]:
    found = {}
    for metric in METRICS:
        values = array("d")
        for row in complete:
            value = getattr(row, metric.name)
            if isinstance(value, array):
                values.extend(value)
            elif value is not None:
                values.append(value)
        distribution = Distribution.of(values)
        if distribution is not None:
            found[metric.name] = distribution
    return found
