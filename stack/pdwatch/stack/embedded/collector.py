"""Families of /metrics whose values are read from the engine at each scrape."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .statistics import EngineStatistics, Load

SCHEDULER_LABELS: Final = ("model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank")
TOKENIZER_LABELS: Final = ("model_name", "engine_type")

_GRAPH_PHASES: Final = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")

Series = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What does not change while a worker runs; memory in GiB, which SGLang calls GB."""

    model_name: str
    engine_type: str
    max_total_tokens: int
    page_size: int
    pages: int
    context_length: int
    weight_gb: float
    kv_cache_gb: float
    load_weight_seconds: float
    startup_seconds: float
    fault: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Engine and service at the moment of a scrape. Token counts are of requests, not rounded to pages.

    `stage_seconds` are the parts of the worker's loop, under SGLang's category names; `idle` is among them.
    """

    load: Load
    statistics: EngineStatistics
    bootstrap_queue: int
    inflight_queue: int
    prealloc_queue: int
    transfer_queue: int
    deferred_release: int
    pending_prealloc_tokens: int
    prealloc_tokens: int
    running_tokens: int
    generation_throughput: float
    stage_seconds: Mapping[str, float]


class EngineCollector(Collector):
    """Reads a snapshot per scrape and writes SGLang's gauges and cumulative counters from it."""

    def __init__(self, facts: WorkerFacts, snapshot: Callable[[], Snapshot]) -> None:
        self._facts = facts
        self._snapshot = snapshot
        self._tokenizer = (facts.model_name, facts.engine_type)
        self._scheduler = (*self._tokenizer, "0", "0", "0")

    def collect(self) -> Iterator[Metric]:
        """All families, each with at least one series."""
        now = self._snapshot()
        for name, value in (self._constants() | self._state(now)).items():
            yield self._scheduled_gauge(name, (), {(): value})
        yield from self._startup()
        yield from self._counters(now)
        info = GaugeMetricFamily("pdwatch_worker_info", "This worker's role and its fault.", labels=("role", "fault"))
        info.add_metric((self._facts.engine_type, self._facts.fault or ""), 1)
        yield info

    def _constants(self) -> dict[str, float]:
        facts = self._facts
        return {
            "max_total_num_tokens": facts.max_total_tokens,
            "weight_memory_usage_gb": facts.weight_gb,
            "kv_cache_memory_usage_gb": facts.kv_cache_gb,
            "page_size": facts.page_size,
            "num_pages": facts.pages,
            "context_len": facts.context_length,
            # features this engine does not have, which SGLang reports as 0 when they are off.
            "num_grammar_queue_reqs": 0,
            "num_decode_host_receive_queue_reqs": 0,
            "spec_accept_length": 0,
        }

    def _state(self, now: Snapshot) -> dict[str, float]:
        load = now.load
        queried = load.prefix_query_tokens
        return {
            "num_running_reqs": load.running,
            "num_queue_reqs": load.waiting,
            "gen_throughput": now.generation_throughput,
            "cache_hit_rate": load.prefix_hit_tokens / queried if queried else 0.0,
            "decode_sum_seq_lens": now.running_tokens,
            "token_usage": load.token_usage,
            "full_token_usage": load.token_usage,
            "num_used_tokens": load.used_tokens,
            "kv_available_tokens": load.total_tokens - load.used_tokens - load.cached_tokens,
            "kv_evictable_tokens": load.cached_tokens,
            "kv_used_tokens": load.used_tokens,
            "num_prefill_bootstrap_queue_reqs": now.bootstrap_queue,
            "num_prefill_inflight_queue_reqs": now.inflight_queue,
            "num_decode_prealloc_queue_reqs": now.prealloc_queue,
            "num_decode_transfer_queue_reqs": now.transfer_queue,
            "num_decode_deferred_kv_release_reqs": now.deferred_release,
            "pending_prealloc_token_usage": now.pending_prealloc_tokens / load.total_tokens,
            "prealloc_full_token_usage": now.prealloc_tokens / load.total_tokens,
        }

    def _startup(self) -> Iterator[Metric]:
        facts = self._facts
        zero: Series = {(phase,): 0.0 for phase in _GRAPH_PHASES}
        phases: Series = {("load_weight",): facts.load_weight_seconds, ("scheduler_e2e",): facts.startup_seconds}
        yield self._scheduled_gauge("graph_memory_usage_gb", ("phase",), zero)
        yield self._gauge("startup_cuda_graph_time_seconds", TOKENIZER_LABELS, self._tokenizer, ("phase",), zero)
        yield self._gauge("startup_time_seconds", TOKENIZER_LABELS, self._tokenizer, ("phase",), phases)

    def _counters(self, now: Snapshot) -> Iterator[Metric]:
        statistics = now.statistics
        tokens: Series = {
            ("prefill_compute",): statistics.prefill_compute_tokens,
            ("prefill_cache",): statistics.prefill_cache_tokens,
            ("decode",): statistics.decode_tokens,
        }
        stages: Series = {(category, "none"): seconds for category, seconds in now.stage_seconds.items()}
        cpu = time.process_time()
        pid = (str(os.getpid()),)
        yield self._scheduled_gauge("num_retracted_reqs", ("pid",), {pid: now.load.retracted_queue})
        yield self._counter("cuda_graph_passes", ("mode",), _keyed(statistics.steps))
        yield self._counter("realtime_tokens", ("mode",), tokens)
        yield self._counter("forward_execution_seconds", ("category",), _keyed(statistics.forward_seconds))
        yield self._counter("scheduler_stage_seconds", ("category", "forward_overlap"), stages)
        yield self._counter("scheduler_idle_seconds", (), {(): now.stage_seconds["idle"]})
        yield self._counter("scheduler_process_cpu_seconds", (), {(): cpu})
        family = CounterMetricFamily(
            "sglang:process_cpu_seconds", help_text("process_cpu_seconds"), labels=("component",)
        )
        family.add_metric(("tokenizer",), cpu)
        yield family

    def _scheduled_gauge(self, name: str, labels: tuple[str, ...], series: Series) -> Metric:
        return self._gauge(name, SCHEDULER_LABELS, self._scheduler, labels, series)

    def _gauge(
        self, name: str, base: tuple[str, ...], base_values: tuple[str, ...], labels: tuple[str, ...], series: Series
    ) -> Metric:
        family = GaugeMetricFamily(f"sglang:{name}", help_text(name), labels=(*base, *labels))
        for values, value in series.items():
            family.add_metric((*base_values, *values), value)
        return family

    def _counter(self, name: str, labels: tuple[str, ...], series: Series) -> Metric:
        family = CounterMetricFamily(f"sglang:{name}", help_text(name), labels=(*SCHEDULER_LABELS, *labels))
        for values, value in series.items():
            family.add_metric((*self._scheduler, *values), value)
        return family


def help_text(name: str) -> str:
    """HELP line of a family: its name in words; SGLang's own texts are not repeated here."""
    return name.replace("_", " ").capitalize() + "."


def _keyed(values: Mapping[str, float]) -> Series:
    return {(key,): value for key, value in values.items()}
