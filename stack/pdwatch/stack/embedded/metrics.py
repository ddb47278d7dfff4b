"""/metrics of a worker: SGLang 0.5.23's families, with its names, types, labels and buckets.

Events (a first token, a finished request, a KV transfer) are observed as they happen. Gauges and the engine's
cumulative counters are read from the engine at each scrape, so unlike SGLang's they are never stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from .collector import SCHEDULER_LABELS, TOKENIZER_LABELS, EngineCollector, Snapshot, WorkerFacts, help_text

_ITL: Final = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
    1, 2, 4, 6, 8,
)  # fmt: skip
_TTFT: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)
_TOKENS: Final = (
    100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500, 20000,
    22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000, 800000, 1000000,
    1100000,
)  # fmt: skip
_QUEUE: Final = (
    0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300,
    400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000,
)  # fmt: skip
_STAGE: Final = tuple(0.001 * 1.62**power for power in range(30))
_SPEED: Final = (0.1, 0.5, 1, 5, 10, 25, 50, 100, 200, 400)
_SHORT_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
_LATENCY_MS: Final = (*_SHORT_MS, 5000)
_SIZE_MB: Final = (1, 5, 10, 50, 100, 500, 1000, 5000, 10000)


class WorkerMetrics:
    """The registry of one worker. Attributes with SGLang's names are children ready to observe."""

    def __init__(self, facts: WorkerFacts, snapshot: Callable[[], Snapshot]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry = CollectorRegistry()
        self._tokenizer = (facts.model_name, facts.engine_type)
        self._scheduler = (facts.model_name, facts.engine_type, "0", "0", "0")
        self._with_latencies = facts.engine_type != "prefill"

        streaming = (*TOKENIZER_LABELS, "is_streaming")
        self._ttft = self._histogram("time_to_first_token_seconds", streaming, _TTFT)
        self._tpot = self._histogram("request_time_per_output_token_seconds", streaming, _ITL)
        self._e2e = self._histogram("e2e_request_latency_seconds", streaming, _E2E)
        itl = self._histogram("inter_token_latency_seconds", TOKENIZER_LABELS, _ITL)
        self._prompt_tokens = self._counter("prompt_tokens", streaming)
        self._generation_tokens = self._counter("generation_tokens", streaming)
        self._requests = self._counter("num_requests", streaming)
        self._cached_tokens = self._counter("cached_tokens", (*TOKENIZER_LABELS, "cache_source"))
        self._aborted = self._counter("num_aborted_requests", TOKENIZER_LABELS).labels(*self._tokenizer)
        self._token_histograms = [
            self._histogram(name, TOKENIZER_LABELS, _TOKENS).labels(*self._tokenizer)
            for name in ("prompt_tokens_histogram", "uncached_prompt_tokens_histogram", "generation_tokens_histogram")
        ]
        self._itl = itl.labels(*self._tokenizer) if self._with_latencies else None

        self._stages = self._histogram("per_stage_req_latency_seconds", (*SCHEDULER_LABELS, "stage"), _STAGE)
        self.queue_time_seconds = self._scheduled("queue_time_seconds", _QUEUE)
        self.kv_transfer_bootstrap_ms = self._scheduled("kv_transfer_bootstrap_ms", _SHORT_MS)
        self.kv_transfer_alloc_ms = self._scheduled("kv_transfer_alloc_ms", _SHORT_MS)
        self._transfer_latency = self._histogram("kv_transfer_latency_ms", SCHEDULER_LABELS, _LATENCY_MS)
        self._transfer_size = self._histogram("kv_transfer_total_mb", SCHEDULER_LABELS, _SIZE_MB)
        self._transfer_speed = self._histogram("kv_transfer_speed_gb_s", SCHEDULER_LABELS, _SPEED)
        if facts.engine_type == "prefill":
            # the sending side shows its series from the start, so that a first transfer is a rate, not a new series.
            for histogram in (self._transfer_latency, self._transfer_size, self._transfer_speed):
                histogram.labels(*self._scheduler)
        self.num_bootstrap_failed_reqs = self._scheduled_counter("num_bootstrap_failed_reqs")
        self.num_transfer_failed_reqs = self._scheduled_counter("num_transfer_failed_reqs")
        self._retractions = [
            self._scheduled_counter(name)
            for name in ("num_retracted_requests", "num_retracted_input_tokens", "num_retracted_output_tokens")
        ]
        released = self._counter("decode_deferred_kv_release", (*SCHEDULER_LABELS, "outcome"))
        self.deferred_releases = {
            outcome: released.labels(*self._scheduler, outcome) for outcome in ("drained", "timeout", "error")
        }

        http = ("endpoint", "method")
        self._http_requests = self._counter("http_requests", http)
        self._http_responses = self._counter("http_responses", ("endpoint", "status_code", "method"))
        active = "http_requests_active"
        self._http_active = Gauge(f"sglang:{active}", help_text(active), http, registry=self.registry)
        self.registry.register(EngineCollector(facts, snapshot))

    def first_token(self, seconds: float, streaming: bool) -> None:
        """A request's first token came `seconds` after the request; a PD prefill worker observes none."""
        if self._with_latencies:
            self._ttft.labels(*self._tokenizer, _flag(streaming)).observe(seconds)

    def further_tokens(self, seconds: float, tokens: int) -> None:
        """`tokens` came together `seconds` after the previous ones: one observation of the mean for each token."""
        if self._itl is not None:
            share = seconds / tokens
            for _ in range(tokens):
                self._itl.observe(share)

    def finished(
        self,
        *,
        streaming: bool,
        prompt_tokens: int,
        cached_tokens: int,
        generated_tokens: int,
        e2e_seconds: float,
        decode_seconds: float | None,
        aborted: bool,
    ) -> None:
        """A request ended; `decode_seconds` is from its first token to its end, None when it had none."""
        labels = (*self._tokenizer, _flag(streaming))
        self._requests.labels(*labels).inc()
        self._prompt_tokens.labels(*labels).inc(prompt_tokens)
        self._generation_tokens.labels(*labels).inc(generated_tokens)
        if cached_tokens:
            self._cached_tokens.labels(*self._tokenizer, "device").inc(cached_tokens)
        lengths = (prompt_tokens, prompt_tokens - cached_tokens, generated_tokens)
        for histogram, length in zip(self._token_histograms, lengths, strict=True):
            histogram.observe(length)
        self._e2e.labels(*labels).observe(e2e_seconds)
        if aborted:
            self._aborted.inc()
        elif self._with_latencies and decode_seconds is not None and generated_tokens > 1:
            self._tpot.labels(*labels).observe(decode_seconds / (generated_tokens - 1))

    def stage(self, stage: str, seconds: float) -> None:
        """A request spent `seconds` in one of SGLang's stages."""
        self._stages.labels(*self._scheduler, stage).observe(seconds)

    def transferred(self, total_bytes: int, seconds: float) -> None:
        """A prefill worker sent a request's KV."""
        self._transfer_latency.labels(*self._scheduler).observe(seconds * 1e3)
        self._transfer_size.labels(*self._scheduler).observe(total_bytes / (1 << 20))
        if seconds > 0:
            self._transfer_speed.labels(*self._scheduler).observe(total_bytes / (1 << 30) / seconds)

    def retracted(self, times: int, prompt_tokens: int, generated_tokens: int) -> None:
        """A running request lost its pages `times` times since its last output, with this much work done."""
        for counter, amount in zip(self._retractions, (1, prompt_tokens, generated_tokens), strict=True):
            counter.inc(times * amount)

    def http_started(self, endpoint: str, method: str) -> None:
        """An HTTP request came in."""
        self._http_requests.labels(endpoint, method).inc()
        self._http_active.labels(endpoint, method).inc()

    def http_ended(self, endpoint: str, method: str, status: int | None) -> None:
        """An HTTP request is over; `status` is None when it was never answered."""
        self._http_active.labels(endpoint, method).dec()
        if status is not None:
            self._http_responses.labels(endpoint, str(status), method).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Exposition and its content type, in the format the Accept header asks for."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def _histogram(self, name: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"sglang:{name}", help_text(name), labels, buckets=buckets, registry=self.registry)

    def _scheduled(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(name, SCHEDULER_LABELS, buckets).labels(*self._scheduler)

    def _scheduled_counter(self, name: str) -> Counter:
        return self._counter(name, SCHEDULER_LABELS).labels(*self._scheduler)

    def _counter(self, name: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"sglang:{name}_total", help_text(name), labels, registry=self.registry)


def _flag(streaming: bool) -> str:
    return "true" if streaming else "false"
