"""Figures of a phase while it runs, at a cost that does not grow: the exact ones come at its end."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Any, Final

from .row import RequestRow
from .slo import Slo
from .transcript import Outcome

# buckets one percent wide: a live percentile is off by at most that.
_BUCKETS_PER_E: Final = 1 / math.log(1.01)
_RATE_SECONDS: Final = 5.0


class LiveHistogram:
    """Counts of durations in buckets 1 % wide."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count a duration; one of 0 or less goes to the bucket of 1 ns."""
        self._counts[math.floor(math.log(max(seconds, 1e-9)) * _BUCKETS_PER_E)] += 1

    def percentile(self, percent: float) -> float | None:
        """The middle of the bucket that holds the percentile; None without durations."""
        left = math.ceil(self._counts.total() * percent / 100)
        for bucket, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return math.exp((bucket + 0.5) / _BUCKETS_PER_E)
        return None


class Live:
    """Add the rows of a phase as they come; warm-up and cool-down count here too."""

    def __init__(self, slo: Slo | None = None) -> None:
        self._slo = slo
        self._outcomes: Counter[str] = Counter()
        self._expected_errors = 0
        self._good = 0
        self._first_token = LiveHistogram()
        self._per_token = LiveHistogram()
        # of the last seconds: when a request ended and its tokens.
        self._ended: deque[tuple[float, int]] = deque()
        self._started_seconds: float | None = None

    def add(self, row: RequestRow) -> None:
        """Take in a request that has ended."""
        self._outcomes[row.outcome.value] += 1
        self._expected_errors += row.is_expected_error
        if self._started_seconds is None or row.sent_seconds < self._started_seconds:
            self._started_seconds = row.sent_seconds
        if row.outcome is not Outcome.COMPLETE:
            return
        self._ended.append((row.ended_seconds, row.output_tokens or 0))
        if row.time_to_first_token_seconds is not None:
            self._first_token.add(row.time_to_first_token_seconds)
        if row.time_per_output_token_seconds is not None:
            self._per_token.add(row.time_per_output_token_seconds)
        if self._slo is not None:
            self._good += self._slo.is_met(row)

    def figures(self, now_seconds: float) -> dict[str, Any]:
        """As JSON values: outcomes so far, percentiles so far, and the rates of the last five seconds."""
        while self._ended and self._ended[0][0] < now_seconds - _RATE_SECONDS:
            self._ended.popleft()
        started = now_seconds if self._started_seconds is None else self._started_seconds
        seconds = min(_RATE_SECONDS, now_seconds - started)
        eligible = self._outcomes.total() - self._outcomes[Outcome.CANCELLED.value] - self._expected_errors
        has_rate = seconds > 0
        return {
            "outcomes": dict(self._outcomes),
            "expected_errors": self._expected_errors,
            "ttft_p50_seconds": self._first_token.percentile(50),
            "ttft_p99_seconds": self._first_token.percentile(99),
            "tpot_p50_seconds": self._per_token.percentile(50),
            "tpot_p99_seconds": self._per_token.percentile(99),
            "complete_per_second": len(self._ended) / seconds if has_rate else None,
            "output_tokens_per_second": sum(tokens for _, tokens in self._ended) / seconds if has_rate else None,
            "good_share": self._good / eligible if self._slo is not None and eligible else None,
        }
