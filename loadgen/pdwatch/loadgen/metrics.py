"""Every latency and size of a request, defined once.

All times are seconds on the client's monotonic clock. A metric without a value is None, never 0; a statistic is taken
over the requests that have one, and over complete requests only.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import sub
from typing import Final, Literal

from .assembly import Assembled
from .definitions import METRICS, Metric
from .percentiles import percentile
from .transcript import Outcome, Transcript

__all__ = ["METRICS", "Metric", "RequestMetrics", "TokenBasis", "measure", "percentile"]

TokenBasis = Literal["usage", "token_lists", "chunks"]
"""How the tokens of each chunk are known: by usage in every chunk, by its token ids or log probabilities, or because
there are as many chunks as tokens."""

_NO_COUNTS: Final = array("q")
_NO_STAMPS: Final = array("d")


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The metrics of one request; each field but the basis is described by the row of METRICS that has its name."""

    time_to_first_token_seconds: float | None
    time_to_first_visible_token_seconds: float | None
    time_to_first_reasoning_seconds: float | None
    time_to_first_content_seconds: float | None
    time_to_first_call_seconds: float | None
    time_per_output_token_seconds: float | None
    end_to_end_seconds: float | None
    decode_window_seconds: float | None
    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens_per_second: float | None
    normalised_end_to_end_seconds: float | None
    schedule_lag_seconds: float | None
    scheduled_time_to_first_token_seconds: float | None
    scheduled_end_to_end_seconds: float | None
    chunks: int | None
    coalesced_chunks: int | None
    longest_inter_chunk_seconds: float | None
    inter_token_seconds: array[float] | None
    inter_chunk_seconds: array[float] | None
    inter_token_basis: TokenBasis | None


def measure(transcript: Transcript, assembled: Assembled) -> RequestMetrics:
    """The metrics of a request, by the formulas in METRICS.

    In the sglang dialect the chunk that brings the role is sent with the first generated token, so its arrival is the
    first token's. In the openai dialect nothing is known before the first delta with output. Usage in the chunks tells
    more than either.
    """
    sent = transcript.sent_seconds
    scheduled = transcript.scheduled_seconds
    is_complete = transcript.outcome is Outcome.COMPLETE
    is_streamed = assembled.is_event_stream
    tokens = assembled.usage_count("completion_tokens") if is_complete else None
    counted = _Counted.of(assembled)
    visible = assembled.first_visible_seconds if is_streamed else None
    first = _first_token(transcript, assembled, counted) if is_streamed else None
    last = _later(assembled.last_token_seconds, counted.last_growth_seconds) if is_complete else None
    window = last - first if first is not None and last is not None else None
    stamps = _stamps(transcript, assembled) if window is not None else _NO_STAMPS
    gaps = array("d", map(sub, stamps[1:], stamps)) if len(stamps) > 1 else None
    token_gaps, basis = _token_gaps(stamps, gaps, counted, assembled, tokens)
    to_first, to_last = _since(sent, first), _since(sent, last)
    per_token = window / (tokens - 1) if window is not None and tokens and tokens > 1 else None
    return RequestMetrics(
        time_to_first_token_seconds=to_first,
        time_to_first_visible_token_seconds=_since(sent, visible),
        time_to_first_reasoning_seconds=_since(sent, assembled.first_reasoning_seconds if is_streamed else None),
        time_to_first_content_seconds=_since(sent, assembled.first_content_seconds if is_streamed else None),
        time_to_first_call_seconds=_since(sent, assembled.first_call_seconds if is_streamed else None),
        time_per_output_token_seconds=per_token,
        end_to_end_seconds=to_last,
        decode_window_seconds=window,
        output_tokens=tokens,
        prompt_tokens=assembled.usage_count("prompt_tokens"),
        cached_tokens=_cached_tokens(assembled),
        output_tokens_per_second=1 / per_token if per_token else None,
        normalised_end_to_end_seconds=to_last / tokens if to_last is not None and tokens else None,
        schedule_lag_seconds=_since(scheduled, sent),
        scheduled_time_to_first_token_seconds=_since(scheduled, first),
        scheduled_end_to_end_seconds=_since(scheduled, last),
        chunks=len(stamps) or None,
        coalesced_chunks=gaps.count(0.0) if gaps is not None else (0 if stamps else None),
        longest_inter_chunk_seconds=max(gaps) if gaps is not None else None,
        inter_token_seconds=token_gaps,
        inter_chunk_seconds=gaps,
        inter_token_basis=basis,
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Usage in the chunks: arrivals, and the completion tokens counted until then."""

    seconds: Sequence[float]
    tokens: Sequence[int]

    @classmethod
    def of(cls, assembled: Assembled) -> _Counted:
        seconds, tokens = assembled.counted_seconds, assembled.counted_tokens
        # the one usage of an ordinary stream tells how many there were, not when.
        if len(seconds) < 2 or any(later < earlier for earlier, later in pairwise(tokens)):
            return cls(_NO_STAMPS, _NO_COUNTS)
        return cls(seconds, tokens)

    @property
    def first_seconds(self) -> float | None:
        """Arrival of the first chunk that counts a token."""
        return next((when for when, count in zip(self.seconds, self.tokens, strict=True) if count), None)

    @property
    def last_growth_seconds(self) -> float | None:
        """Arrival of the last chunk that counts more tokens than the ones before."""
        if not self.tokens or not self.tokens[-1]:
            return None
        return self.seconds[list(self.tokens).index(self.tokens[-1])]

    def increments(self) -> list[int]:
        """Tokens that each chunk brought."""
        return [self.tokens[0], *(later - earlier for earlier, later in pairwise(self.tokens))] if self.tokens else []


def _first_token(transcript: Transcript, assembled: Assembled, counted: _Counted) -> float | None:
    visible = assembled.first_visible_seconds
    if (told := counted.first_seconds) is not None:
        return told if visible is None else min(told, visible)
    return assembled.first_choice_seconds if transcript.dialect == "sglang" else visible


def _stamps(transcript: Transcript, assembled: Assembled) -> array[float]:
    """Arrivals of the chunks with output, the role's among them where it comes with a token."""
    stamps = array("d", assembled.output_seconds)
    first = assembled.first_choice_seconds
    if first is not None and transcript.dialect == "sglang" and not assembled.first_choice_is_output:
        stamps.insert(0, first)
    return stamps


def _token_gaps(
    stamps: array[float], gaps: array[float] | None, counted: _Counted, assembled: Assembled, tokens: int | None
) -> tuple[array[float] | None, TokenBasis | None]:
    """The gaps between tokens, and how it is known which chunk brought how many."""
    if not stamps or not tokens:
        return None, None
    if counted.tokens and counted.tokens[-1] == tokens:
        return _spread(counted.seconds, counted.increments()), "usage"
    told = assembled.output_token_counts
    if told and min(told) >= 0 and sum(told) == tokens:
        return _spread(assembled.output_seconds, told), "token_lists"
    if len(stamps) != tokens or gaps is None:
        return None, None
    return (gaps if 0.0 not in gaps else _spread(stamps, [1] * tokens)), "chunks"


def _spread(seconds: Sequence[float], counts: Sequence[int]) -> array[float] | None:
    """One gap a token after the first arrival: the time since the arrival before, over the tokens that came at once."""
    gaps = array("d")
    before: float | None = None
    now, arrived = 0.0, 0
    for when, count in (*zip(seconds, counts, strict=True), (float("inf"), 0)):
        if when != now and arrived:
            if before is not None:
                gaps.extend([(now - before) / arrived] * arrived)
            before, arrived = now, 0
        now = when
        arrived += count
    return gaps or None


def _cached_tokens(assembled: Assembled) -> int | None:
    details = (assembled.usage or {}).get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if type(cached) is int and cached >= 0 else None


def _later(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _since(start: float | None, then: float | None) -> float | None:
    return None if then is None or start is None else then - start
