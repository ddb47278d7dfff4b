"""The run's circumstances as rows of words for the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import orjson

from pdwatch.gate.run_folder import RunRecord

# what an engineer asks first about a server; the rest is in run.json
_SERVER_KEYS = (
    "version",
    "model_path",
    "weights_sha256",
    "disaggregation_mode",
    "attention_backend",
    "disable_cuda_graph",
    "cuda_graph_bs",
    "disable_overlap_schedule",
    "multi_stream_overlap",
    "kernels",
    "capture",
    "page_size",
    "max_running_requests",
    "max_total_num_tokens",
    "disable_radix_cache",
    "prefix_cache",
    "fault",
)


def run_facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Name and value of each fact about the run."""
    load = record.policy.load
    yield "Run", record.run_id
    yield "Started", record.started_utc
    yield "Deployment", "embedded, started by pdwatch" if record.embedded else "existing"
    yield "Fault switched on", record.fault or "none"
    yield "Model", record.model or "unknown"
    yield "Levels", ", ".join(map(str, load.levels))
    yield "Window", f"{load.window_seconds:g} s after {load.warmup_seconds:g} s of warm-up"
    yield "Seed", str(load.seed)
    yield "Cancelled on purpose", f"{load.cancel_rate:.0%} of requests"
    yield "Command", shlex.join(record.command)
    host = record.host
    if host:
        yield "Host", f"{host.get('processor') or host.get('machine')}, {host.get('cores')} cores, {host.get('system')}"
        yield "Load average at the start", f"{host.get('load_average_1_minute', 0):.2f}"
    yield "Software", ", ".join(f"{name} {version}" for name, version in record.versions.items())


def server_facts(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Name, address and what matters of its own account, for each server."""
    for worker in record.workers:
        info = worker.server_info or {}
        told = [f"{key} {_word(info[key])}" for key in _SERVER_KEYS if info.get(key) is not None]
        yield worker.name, worker.url, ", ".join(told) or "told nothing"


def _word(value: object) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}…"
