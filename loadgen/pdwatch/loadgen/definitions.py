"""What every number of a request means; the table of docs/loadgen.md is made from this one."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .metrics import RequestMetrics


@dataclass(frozen=True, slots=True)
class Metric:
    """What a number means: its field of RequestMetrics, usual name, unit, formula, and when there is none."""

    name: str
    title: str
    unit: str
    formula: str
    absent_when: str

    def read(self, metrics: RequestMetrics) -> float | array[float] | None:
        """The metric's value for a request."""
        value: float | array[float] | None = getattr(metrics, self.name)
        return value


_NOT_COMPLETE: Final = "the request is not complete"
_NOT_STREAMED: Final = "the answer was not streamed"

METRICS: Final = (
    Metric(
        name="time_to_first_token_seconds",
        title="TTFT",
        unit="seconds",
        formula=(
            "arrival of the first token − sending; the first token is in the first chunk whose usage counts one, else "
            "in the first chunk with a choice (sglang) or with output (openai)"
        ),
        absent_when=f"no token arrived, or {_NOT_STREAMED}",
    ),
    Metric(
        name="time_to_first_visible_token_seconds",
        title="time to first visible token",
        unit="seconds",
        formula="arrival of the first delta with text, reasoning or call output − sending",
        absent_when=f"no output arrived, or {_NOT_STREAMED}",
    ),
    Metric(
        name="time_to_first_reasoning_seconds",
        title="time to first reasoning",
        unit="seconds",
        formula="arrival of the first delta with reasoning − sending",
        absent_when=f"no reasoning arrived, or {_NOT_STREAMED}",
    ),
    Metric(
        name="time_to_first_content_seconds",
        title="time to first content",
        unit="seconds",
        formula="arrival of the first delta with content that is no reasoning − sending",
        absent_when=f"no content arrived, or {_NOT_STREAMED}",
    ),
    Metric(
        name="time_to_first_call_seconds",
        title="time to first call",
        unit="seconds",
        formula="arrival of the first delta with part of a tool call − sending",
        absent_when=f"no tool call arrived, or {_NOT_STREAMED}",
    ),
    Metric(
        name="time_per_output_token_seconds",
        title="TPOT",
        unit="seconds",
        formula="decode window / (output tokens − 1)",
        absent_when=f"{_NOT_COMPLETE}, {_NOT_STREAMED}, usage is missing, or fewer than two tokens came",
    ),
    Metric(
        name="end_to_end_seconds",
        title="E2E",
        unit="seconds",
        formula=(
            "arrival of the last token − sending; the last token is in the last chunk with output, finish_reason or a "
            "grown usage beside a choice; usage and [DONE] after it do not count"
        ),
        absent_when=_NOT_COMPLETE,
    ),
    Metric(
        name="decode_window_seconds",
        title="decode window",
        unit="seconds",
        formula="arrival of the last token − arrival of the first",
        absent_when=f"{_NOT_COMPLETE}, {_NOT_STREAMED}, or no first token is known",
    ),
    Metric(
        name="output_tokens",
        title="output tokens",
        unit="tokens",
        formula="usage.completion_tokens (the end-of-sequence token counts)",
        absent_when=f"{_NOT_COMPLETE} or usage is missing; never guessed from chunks or limits",
    ),
    Metric(
        name="prompt_tokens",
        title="prompt tokens",
        unit="tokens",
        formula="usage.prompt_tokens",
        absent_when="usage is missing",
    ),
    Metric(
        name="cached_tokens",
        title="cached tokens",
        unit="tokens",
        formula="usage.prompt_tokens_details.cached_tokens",
        absent_when="the server does not tell",
    ),
    Metric(
        name="output_tokens_per_second",
        title="output tokens/s of a request",
        unit="tokens/second",
        formula="1 / TPOT",
        absent_when="TPOT is absent or 0",
    ),
    Metric(
        name="normalised_end_to_end_seconds",
        title="normalised E2E",
        unit="seconds/token",
        formula="E2E / output tokens",
        absent_when=f"{_NOT_COMPLETE}, usage is missing, or no token came",
    ),
    Metric(
        name="schedule_lag_seconds",
        title="schedule lag",
        unit="seconds",
        formula="sending − the time at which the schedule wanted it",
        absent_when="the load has no schedule (closed loop, waves)",
    ),
    Metric(
        name="scheduled_time_to_first_token_seconds",
        title="TTFT from schedule",
        unit="seconds",
        formula="TTFT + schedule lag",
        absent_when="TTFT is absent or the load has no schedule",
    ),
    Metric(
        name="scheduled_end_to_end_seconds",
        title="E2E from schedule",
        unit="seconds",
        formula="E2E + schedule lag",
        absent_when="E2E is absent or the load has no schedule",
    ),
    Metric(
        name="chunks",
        title="chunks",
        unit="chunks",
        formula="chunks with output or finish_reason, and in the sglang dialect the opening one",
        absent_when=f"{_NOT_COMPLETE} or {_NOT_STREAMED}",
    ),
    Metric(
        name="coalesced_chunks",
        title="coalesced chunks",
        unit="chunks",
        formula="chunks that one read brought together with the chunk before",
        absent_when=f"{_NOT_COMPLETE} or {_NOT_STREAMED}",
    ),
    Metric(
        name="longest_inter_chunk_seconds",
        title="longest stall",
        unit="seconds",
        formula="the largest of the inter-chunk latencies",
        absent_when=f"{_NOT_COMPLETE}, {_NOT_STREAMED}, or fewer than two chunks came",
    ),
    Metric(
        name="inter_token_seconds",
        title="ITL",
        unit="seconds",
        formula=(
            "one value for each token after the first arrival: time since the arrival before / tokens that arrived at "
            "once. Tokens of a chunk: growth of its usage; else its token ids or logprobs; else one, if there are as "
            "many chunks as tokens"
        ),
        absent_when="none of the three tells which chunk brought how many tokens, or all came at once",
    ),
    Metric(
        name="inter_chunk_seconds",
        title="inter-chunk latency",
        unit="seconds",
        formula="gaps between the arrivals of consecutive chunks with output; 0 when one read brought several",
        absent_when=f"{_NOT_COMPLETE}, {_NOT_STREAMED}, or fewer than two chunks came",
    ),
)
