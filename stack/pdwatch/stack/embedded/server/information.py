"""What a worker tells about itself: health, models, server and model info, load."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Receive, Scope, Send

from .http import TEXT_TYPE, respond, respond_json

if TYPE_CHECKING:
    from ..collector import Snapshot, WorkerFacts
    from ..metrics import WorkerMetrics
    from ..service import Service

# the protocol that is spoken, and who speaks it.
VERSION: Final = "0.5.23+pdwatch"


class Information:
    """Endpoints that only read."""

    def __init__(
        self, service: Service, metrics: WorkerMetrics, facts: WorkerFacts, arguments: Mapping[str, Any]
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._facts = facts
        self._arguments = dict(arguments)
        self._started = int(time.time())

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 while the engine's loop runs; a worker whose loop ended is gone."""
        await respond(send, 200, b"", TEXT_TYPE)

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The one model."""
        name = self._facts.model_name
        model = {"id": name, "object": "model", "created": self._started, "owned_by": "sglang", "root": name}
        model |= {"parent": None, "max_model_len": self._facts.context_length}
        await respond_json(send, 200, {"object": "list", "data": [model]})

    async def server_info(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Arguments this worker runs with, and the state SGLang adds to them."""
        snapshot, facts = self._service.snapshot(), self._facts
        memory = {"weight": facts.weight_gb, "kvcache": facts.kv_cache_gb, "token_capacity": facts.max_total_tokens}
        state = {
            "last_gen_throughput": snapshot.generation_throughput,
            "memory_usage": memory,
            "startup_time": {"load_weight": facts.load_weight_seconds, "scheduler_e2e": facts.startup_seconds},
            "effective_max_running_requests_per_dp": self._arguments["max_running_requests"],
        }
        await respond_json(send, 200, self._arguments | {"internal_states": [state], "version": VERSION})

    async def model_info(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Model facts that routers copy to labels."""
        path = self._arguments["model_path"]
        info = {
            "model_path": path,
            "tokenizer_path": path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "tiny_toolcaller",
            "architectures": ["TinyToolcallerForCausalLM"],
        }
        await respond_json(send, 200, info)

    async def loads(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Load of the one data-parallel rank, always whole: SGLang's `include` and `format` are ignored."""
        now = datetime.datetime.now(datetime.UTC).isoformat()
        body = {"timestamp": now, "version": VERSION, "accelerator": None, "num_accelerators": 1}
        await respond_json(send, 200, body | {"loads": [self._load(self._service.snapshot())]})

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The older form of the load, which routers still ask for."""
        load = self._service.snapshot().load
        entry = {"rid": None, "dp_rank": 0, "num_reqs": load.running + load.waiting}
        entry |= {"num_waiting_reqs": load.waiting, "num_tokens": load.used_tokens}
        await respond_json(send, 200, [entry])

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Prometheus exposition."""
        accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
        body, content_type = self._metrics.render(accept)
        await respond(send, 200, body, content_type.encode())

    def _load(self, now: Snapshot) -> dict[str, Any]:
        load, facts = now.load, self._facts
        queried = load.prefix_query_tokens
        return {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_used_tokens": load.used_tokens,
            "num_total_tokens": load.used_tokens + now.pending_prealloc_tokens,
            "num_active_tokens": now.running_tokens,
            "max_total_num_tokens": load.total_tokens,
            "max_running_requests": self._arguments["max_running_requests"],
            "token_usage": load.token_usage,
            "gen_throughput": now.generation_throughput,
            "cache_hit_rate": load.prefix_hit_tokens / queried if queried else 0.0,
            "memory": {
                "weight_gb": facts.weight_gb,
                "kv_cache_gb": facts.kv_cache_gb,
                "graph_gb": 0.0,
                "token_capacity": facts.max_total_tokens,
            },
            "disaggregation": {
                "mode": self._arguments["disaggregation_mode"],
                "prefill_bootstrap_queue_reqs": now.bootstrap_queue,
                "prefill_inflight_queue_reqs": now.inflight_queue,
                "decode_prealloc_queue_reqs": now.prealloc_queue,
                "decode_transfer_queue_reqs": now.transfer_queue,
                "decode_retracted_queue_reqs": load.retracted_queue,
            },
            "queues": {"waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": load.retracted_queue},
        }
