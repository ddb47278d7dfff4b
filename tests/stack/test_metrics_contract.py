"""/metrics against recorded SGLang: every family has SGLang's name, type, labels and buckets, and none is invented."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pdwatch.stack.embedded.collector import Snapshot, WorkerFacts
from pdwatch.stack.embedded.metrics import WorkerMetrics
from pdwatch.stack.embedded.statistics import EngineStatistics, Load

DATA = Path(__file__).parent.parent / "data" / "sglang"
SCHEDULER = frozenset({"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"})
TOKENIZER = frozenset({"model_name", "engine_type"})
# in SGLang 0.5.23's source, but only exposed after events that the recorded runs did not have.
UNRECORDED = {
    "sglang:forward_execution_seconds": SCHEDULER | {"category"},
    "sglang:num_aborted_requests": TOKENIZER,
    "sglang:num_bootstrap_failed_reqs": SCHEDULER,
    "sglang:num_transfer_failed_reqs": SCHEDULER,
    "sglang:num_retracted_requests": SCHEDULER,
    "sglang:num_retracted_input_tokens": SCHEDULER,
    "sglang:num_retracted_output_tokens": SCHEDULER,
    "sglang:decode_deferred_kv_release": SCHEDULER | {"outcome"},
}
# what a decode dashboard asks for (router and speculation aside); on a worker of the named role.
ASKED_BY_DASHBOARDS = {
    "inter_token_latency_seconds", "request_time_per_output_token_seconds", "time_to_first_token_seconds",
    "e2e_request_latency_seconds", "num_running_reqs", "num_queue_reqs", "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs", "num_decode_host_receive_queue_reqs", "full_token_usage", "token_usage",
    "prealloc_full_token_usage", "pending_prealloc_token_usage", "num_retracted_requests",
    "num_retracted_output_tokens", "realtime_tokens", "cuda_graph_passes", "forward_execution_seconds",
    "scheduler_idle_seconds", "scheduler_stage_seconds", "spec_accept_length", "kv_transfer_latency_ms",
    "kv_transfer_total_mb", "kv_transfer_speed_gb_s", "kv_transfer_bootstrap_ms", "kv_transfer_alloc_ms",
    "num_transfer_failed_reqs", "num_bootstrap_failed_reqs", "per_stage_req_latency_seconds",
    "num_prefill_inflight_queue_reqs", "num_prefill_bootstrap_queue_reqs", "num_aborted_requests", "http_requests",
    "http_responses", "http_requests_active", "num_requests", "generation_tokens", "prompt_tokens", "cached_tokens",
    "queue_time_seconds", "max_total_num_tokens", "page_size", "num_pages", "context_len",
}  # fmt: skip
NEVER_ON_PREFILL = {
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"
}  # fmt: skip
ONLY_ON_PREFILL = {"kv_transfer_latency_ms", "kv_transfer_total_mb", "kv_transfer_speed_gb_s"}


def snapshot() -> Snapshot:
    values = dict.fromkeys((field.name for field in dataclasses.fields(Load)), 0) | {
        "running": 1, "waiting": 2, "used_tokens": 640, "cached_tokens": 128, "total_tokens": 1280,
        "prefix_hit_tokens": 3, "prefix_query_tokens": 4,
    }  # fmt: skip
    load = Load(**values)
    return Snapshot(load, EngineStatistics(), 7, 8, 9, 10, 11, 128, 256, 512, 99.5, {"run_batch": 1.0, "idle": 2.0})


@cache
def worker_exposition(role: str) -> dict[str, Metric]:
    """What a worker of `role` exposes after one request of each kind and one transfer."""
    facts = WorkerFacts("m", role, 1280, 64, 21, 4096, 0.1, 0.2, 0.3, 0.4, None)
    metrics = WorkerMetrics(facts, snapshot)
    for streaming in (True, False):
        metrics.first_token(0.1, streaming)
        metrics.further_tokens(0.02, 2)
        metrics.finished(
            streaming=streaming, prompt_tokens=9, cached_tokens=4, generated_tokens=3, e2e_seconds=1.0,
            decode_seconds=0.5, aborted=False,
        )  # fmt: skip
    metrics.stage("prefill_forward", 0.1)
    if role == "prefill":
        metrics.transferred(1 << 20, 0.001)
    metrics.http_started("/health", "GET")
    metrics.http_ended("/health", "GET", 200)
    body, content_type = metrics.render("text/plain")
    assert content_type.startswith("text/plain")
    assert b"_created" not in body
    return families(body.decode())


def families(exposition: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(exposition)}


@cache
def recorded() -> dict[str, Metric]:
    """All families of the dumps, each from the dump that has most of its series."""
    merged: dict[str, Metric] = {}
    for name in ("metrics_prefill.txt", "metrics_decode.txt", "metrics_unified_0523.txt"):
        for family in families((DATA / name).read_text()).values():
            if family.name not in merged or len(family.samples) > len(merged[family.name].samples):
                merged[family.name] = family
    return merged


def labels(family: Metric) -> set[frozenset[str]]:
    return {frozenset(sample.labels) - {"le"} for sample in family.samples}


def buckets(family: Metric) -> set[float]:
    return {float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")}


def exposed() -> Iterator[tuple[str, Metric]]:
    for role in ("unified", "prefill", "decode"):
        for name, family in worker_exposition(role).items():
            if name.startswith("sglang:") and family.samples:
                yield role, family


@pytest.mark.parametrize(("role", "family"), list(exposed()), ids=lambda value: getattr(value, "name", value))
def test_family_is_sglangs(role: str, family: Metric) -> None:
    if family.name in UNRECORDED:
        assert family.type == "counter"
        assert labels(family) == {UNRECORDED[family.name]}
        return
    expected = recorded()[family.name]
    assert family.type == expected.type
    assert labels(family) == labels(expected)
    assert buckets(family) == buckets(expected)


@pytest.mark.parametrize("role", ["prefill", "decode", "unified"])
def test_dashboards_find_what_they_ask_for(role: str) -> None:
    present = {name.removeprefix("sglang:") for name, family in worker_exposition(role).items() if family.samples}
    absent = NEVER_ON_PREFILL if role == "prefill" else ONLY_ON_PREFILL
    assert ASKED_BY_DASHBOARDS - absent <= present
    assert not absent & present


def test_series_that_are_not_sglangs_have_our_name() -> None:
    names = worker_exposition("decode")
    assert {name for name in names if not name.startswith("sglang:")} == {"pdwatch_worker_info"}


def test_inter_token_latency_is_weighted_by_tokens() -> None:
    family = worker_exposition("decode")["sglang:inter_token_latency_seconds"]
    values = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples if "le" not in sample.labels}
    # two chunks of 2 tokens, each 0.02 s after the one before: 4 observations of 0.01 s.
    assert values["count"] == 4
    assert values["sum"] == pytest.approx(0.04)


def test_gauges_come_from_the_snapshot() -> None:
    names = worker_exposition("decode")
    value = {name: family.samples[0].value for name, family in names.items() if len(family.samples) == 1}
    # 1280 tokens in the pool, 640 used and 128 cached.
    assert value["sglang:kv_available_tokens"] == 512
    assert value["sglang:pending_prealloc_token_usage"] == 128 / 1280
    assert value["sglang:prealloc_full_token_usage"] == 256 / 1280
    assert value["sglang:cache_hit_rate"] == 3 / 4
    assert value["sglang:num_decode_prealloc_queue_reqs"] == 9
    assert value["sglang:scheduler_idle_seconds"] == 2.0


def test_openmetrics_is_answered_when_asked_for() -> None:
    facts = WorkerFacts("m", "decode", 1280, 64, 21, 4096, 0.1, 0.2, 0.3, 0.4, None)
    _, content_type = WorkerMetrics(facts, snapshot).render("application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
