"""Counters and gauges of one engine, for /metrics and /v1/loads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineStatistics:
    """Cumulative since the engine was made, except the `last_*` facts of the most recent step."""

    prefill_compute_tokens: int = 0
    prefill_cache_tokens: int = 0
    decode_tokens: int = 0
    retracted: int = 0
    aborted: int = 0
    finished: int = 0
    # steps by mode, under SGLang's names of the forward mode.
    steps: dict[str, int] = field(default_factory=lambda: {"prefill_none": 0, "decode_none": 0, "decode_cuda_graph": 0})
    forward_seconds: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "decode": 0.0})
    last_prefill_step_seconds: float | None = None
    last_decode_step_seconds: float | None = None
    last_batch: int = 0

    def prefilled(self, computed_tokens: int, cached_tokens: int, seconds: float) -> None:
        """Books one step over (a chunk of) a prompt."""
        self.prefill_compute_tokens += computed_tokens
        self.prefill_cache_tokens += cached_tokens
        self.steps["prefill_none"] += 1
        self.forward_seconds["prefill"] += seconds
        self.last_prefill_step_seconds = seconds

    def decoded(self, mode: str, batch: int, tokens: int, seconds: float) -> None:
        """Books one decode step of `batch` rows, `tokens` of which got a token."""
        self.decode_tokens += tokens
        self.steps[mode] += 1
        self.forward_seconds["decode"] += seconds
        self.last_decode_step_seconds = seconds
        self.last_batch = batch


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine holds at this moment.

    `used_tokens` counts tokens of pages that requests hold; `cached_tokens` those of pages that only the prefix
    cache holds (they are given up when needed).
    """

    running: int
    waiting: int
    used_tokens: int
    cached_tokens: int
    total_tokens: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    bootstrap_queue: int
    inflight_queue: int
    prealloc_queue: int
    transfer_queue: int
    retracted_queue: int
    retracted_total: int

    @property
    def token_usage(self) -> float:
        """used_tokens / total_tokens."""
        return self.used_tokens / self.total_tokens
