"""Every latency and size of a request, defined once.

All times are seconds on the client's monotonic clock. A metric without a value is None, never 0; a statistic is taken
over the requests that have one, and over complete requests only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .assembly import Assembled
from .transcript import Outcome, Transcript


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The metrics of one request; each field is described by the row of METRICS that has its name."""

    time_to_first_token_seconds: float | None
    time_to_first_visible_token_seconds: float | None
    time_per_output_token_seconds: float | None
    end_to_end_seconds: float | None
    decode_window_seconds: float | None
    output_tokens: int | None
    prompt_tokens: int | None
    inter_token_seconds: tuple[float, ...] | None
    inter_chunk_seconds: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Metric:
    """What a number means: its field of RequestMetrics, usual name, unit, formula, and when there is none."""

    name: str
    title: str
    unit: str
    formula: str
    absent_when: str

    def read(self, metrics: RequestMetrics) -> float | tuple[float, ...] | None:
        """The metric's value for a request."""
        value: float | tuple[float, ...] | None = getattr(metrics, self.name)
        return value


def measure(transcript: Transcript, assembled: Assembled) -> RequestMetrics:
    """The metrics of a request, by the formulas in METRICS.

    In the sglang dialect the chunk that brings the role is sent with the first generated token, so its arrival is the
    first token's. In the openai dialect nothing is known before the first delta with output.
    """
    sent = transcript.sent_seconds
    visible = assembled.first_visible_seconds
    first = assembled.first_choice_seconds if transcript.dialect == "sglang" else visible
    is_complete = transcript.outcome is Outcome.COMPLETE
    last = assembled.last_token_seconds if is_complete else None
    tokens = assembled.usage_count("completion_tokens") if is_complete else None
    window = last - first if first is not None and last is not None else None
    stamps: list[float] = []
    if first is not None and window is not None:
        has_opening = transcript.dialect == "sglang" and not assembled.first_choice_is_output
        stamps = [first, *assembled.output_seconds] if has_opening else list(assembled.output_seconds)
    gaps = tuple(later - earlier for earlier, later in pairwise(stamps))
    return RequestMetrics(
        time_to_first_token_seconds=_since(sent, first),
        time_to_first_visible_token_seconds=_since(sent, visible),
        time_per_output_token_seconds=window / (tokens - 1) if window is not None and tokens and tokens > 1 else None,
        end_to_end_seconds=_since(sent, last),
        decode_window_seconds=window,
        output_tokens=tokens,
        prompt_tokens=assembled.usage_count("prompt_tokens"),
        inter_token_seconds=gaps if gaps and len(stamps) == tokens else None,
        inter_chunk_seconds=gaps or None,
    )


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Exact percentile of raw values; None for no values.

    With n sorted values x[0] … x[n−1] and position p = (n − 1) · percent / 100, the value is
    x[⌊p⌋] + (p − ⌊p⌋) · (x[⌊p⌋ + 1] − x[⌊p⌋]): linear interpolation, numpy's default.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}; give 0 to 100")
    ordered = sorted(values)
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


METRICS: Final = (
    Metric(
        name="time_to_first_token_seconds",
        title="TTFT",
        unit="seconds",
        formula="arrival of the first token − sending (sglang: first chunk with a choice; openai: first output delta)",
        absent_when="no token arrived",
    ),
    Metric(
        name="time_to_first_visible_token_seconds",
        title="time to first visible token",
        unit="seconds",
        formula="arrival of the first delta with text, reasoning or call output − sending",
        absent_when="no output arrived",
    ),
    Metric(
        name="time_per_output_token_seconds",
        title="TPOT",
        unit="seconds",
        formula="(arrival of the last token − arrival of the first) / (usage.completion_tokens − 1)",
        absent_when="the request is not complete, usage is missing, or fewer than two tokens came",
    ),
    Metric(
        name="end_to_end_seconds",
        title="E2E",
        unit="seconds",
        formula="arrival of the last token − sending; the last token is the last output delta or finish_reason",
        absent_when="the request is not complete",
    ),
    Metric(
        name="decode_window_seconds",
        title="decode window",
        unit="seconds",
        formula="arrival of the last token − arrival of the first",
        absent_when="the request is not complete or has no first token",
    ),
    Metric(
        name="output_tokens",
        title="output tokens",
        unit="tokens",
        formula="usage.completion_tokens (the end-of-sequence token counts)",
        absent_when="the request is not complete or usage is missing; never guessed from chunks or limits",
    ),
    Metric(
        name="prompt_tokens",
        title="prompt tokens",
        unit="tokens",
        formula="usage.prompt_tokens",
        absent_when="usage is missing",
    ),
    Metric(
        name="inter_token_seconds",
        title="ITL",
        unit="seconds",
        formula="gaps between the arrivals of consecutive tokens",
        absent_when="the chunks with output are not one a token, so that nobody can tell the tokens apart",
    ),
    Metric(
        name="inter_chunk_seconds",
        title="inter-chunk latency",
        unit="seconds",
        formula="gaps between the arrivals of consecutive chunks with output; 0 when one read brought several",
        absent_when="the request is not complete or fewer than two chunks came",
    ),
)


def _since(sent: float, then: float | None) -> float | None:
    return None if then is None else then - sent
