"""A phase in figures, all taken from the same window.

Latency: complete requests of the measured part that were due inside the window: by their schedule, if they have one,
else by their sending. Load goes on until the last of them has ended, so long ones are not cut off. Outcomes, error
share and goodput: all measured requests due inside it, failed ones too, and those that were never sent because no user
was free for them; apart from them and in no share are those that we ourselves gave up on, and those that were to be
refused and were.

Rates are of complete requests of any label, each in the part that lies inside the window: of a request as much as of
the time from its sending to its end, of its output tokens as much as of its decode window. Whole requests, counted by
their ends, would make the rate of users in lock-step jump by all of them at each edge. Sendings are moments and are
counted as such: their rate is what was asked of the server, whatever came of it. Of a request that is not complete
nobody knows how many tokens it had: the token rates lack them.
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
    """Requests that kept to the SLO: `good` of `eligible`, all that were due and not given up on by us.

    `lower` and `upper` are one-sided 95 % bounds of the share, for requests that fare alike when they run together;
    `effective_trials` says how many independent ones they are worth. `broken` counts complete requests by the limit
    that they did not keep to. `per_second` is the part of the complete requests' rate that is good.
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

    `sent` are all whose shares these are: `complete`, `cancelled` by us, `failed`, and `expected_errors`, which were to
    be refused and were. `unsent` were due as well and never sent: goodput counts them. `unrefused` were to be refused
    and got an answer, which is among the complete ones.
    `examples` has one failure of each class, warm-up and cool-down included. `latencies` are distributions by the names
    of METRICS. `without_usage` counts complete requests whose tokens nobody counted: the token rates lack them.
    `token_bases` counts requests by how their ITL is known, `defects` answers that show a defect, by its code.
    """

    window: Window
    sent: int
    complete: int
    cancelled: int
    failed: int
    expected_errors: int = 0
    unrefused: int = 0
    unsent: int = 0
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


def summarise(rows: Sequence[RequestRow], window: Window, slo: Slo | None = None, *, unsent: int = 0) -> PhaseSummary:
    """The summary of one phase from all of its rows, whatever their label and order.

    `unsent` measured requests were due in the window and have no row.
    """
    sent = _measured(rows, window)
    complete = [row for row in sent if row.outcome is Outcome.COMPLETE]
    refused = sum(row.is_expected_error for row in sent)
    outcomes = Counter(row.outcome.value for row in sent)
    cancelled = outcomes[Outcome.CANCELLED.value]
    failed = sum(row.is_failure for row in sent)
    parts = [(row, part) for row in rows if row.outcome is Outcome.COMPLETE and (part := _part_inside(row, window))]
    in_flight = in_flight_mean(rows, window.starts_seconds, window.ends_seconds)
    eligible = len(complete) + failed
    goodput = None
    if slo is not None:
        good_parts = math.fsum(part for row, part in parts if slo.is_met(row))
        goodput = _goodput(slo, sent, unsent, in_flight or 0.0, _rate(good_parts, window))
    return PhaseSummary(
        window=window,
        sent=len(sent),
        complete=len(complete),
        cancelled=cancelled,
        failed=failed,
        expected_errors=refused,
        unrefused=sum(row.is_refusal_wanted for row in complete),
        unsent=unsent,
        error_share=failed / eligible if eligible else None,
        outcomes=dict(outcomes),
        examples=_examples(rows),
        sent_per_second=_rate(sum(_is_inside(row.sent_seconds, window) for row in rows), window),
        complete_per_second=_rate(math.fsum(part for _, part in parts), window),
        output_tokens_per_second=_rate(_output_tokens(rows, window), window),
        prompt_tokens_per_second=_rate(_prompt_tokens(rows, window), window),
        in_flight_mean=in_flight,
        goodput=goodput,
        latencies=_latencies(complete),
        token_bases=dict(Counter(row.inter_token_basis for row in complete if row.inter_token_basis is not None)),
        without_usage=sum(row.output_tokens is None for row in complete),
        defects=dict(Counter(code for row in sent if row.outcome in _ANSWERED for code in row.defects)),
    )


def margins(rows: Sequence[RequestRow], window: Window, slo: Slo, *, unsent: int = 0) -> list[float]:
    """How much of its limits each measured request due inside the window took (see `Slo.margin`), in that order.

    Those that we gave up on or wanted refused are left out; unsent ones, the last to be due, took more than there was.
    """
    return _margins(_measured(rows, window), slo, unsent)


def _margins(sent: Sequence[RequestRow], slo: Slo, unsent: int) -> list[float]:
    eligible = (row for row in sent if row.outcome is not Outcome.CANCELLED and not row.is_expected_error)
    return [*map(slo.margin, eligible), *[math.inf] * unsent]


def _measured(rows: Sequence[RequestRow], window: Window) -> list[RequestRow]:
    """The measured requests due inside the window, in that order."""
    # the label is chosen by when a request is due: without a window of its own the label is what counts.
    found = (
        row
        for row in rows
        if row.label is Label.MEASURED and (not window.is_steady or _is_inside(row.due_seconds, window))
    )
    return sorted(found, key=lambda row: row.due_seconds)


def _is_inside(seconds: float, window: Window) -> bool:
    return window.starts_seconds <= seconds < window.ends_seconds


def _part_inside(row: RequestRow, window: Window) -> float:
    """How much of a request's time from sending to end lies inside the window."""
    seconds = row.ended_seconds - row.sent_seconds
    if seconds <= 0:
        return float(_is_inside(row.ended_seconds, window))
    overlap = min(row.ended_seconds, window.ends_seconds) - max(row.sent_seconds, window.starts_seconds)
    return max(0.0, overlap) / seconds


def _rate(amount: float, window: Window) -> float | None:
    return amount / window.seconds if window.seconds > 0 else None


def _examples(rows: Sequence[RequestRow]) -> dict[str, str]:
    examples: dict[str, str] = {}
    for row in rows:
        if row.is_failure:
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
    slo: Slo, sent: Sequence[RequestRow], unsent: int, in_flight: float, good_per_second: float | None
) -> Goodput:
    estimate = estimate_share(_margins(sent, slo, unsent), in_flight)
    return Goodput(
        slo=str(slo),
        good=estimate.good,
        eligible=estimate.trials,
        share=estimate.share,
        lower=estimate.lower(CONFIDENCE),
        upper=estimate.upper(CONFIDENCE),
        effective_trials=estimate.effective_trials,
        blocks=estimate.blocks,
        per_second=good_per_second,
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
