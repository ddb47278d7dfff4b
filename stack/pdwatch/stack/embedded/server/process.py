"""The parts of one worker, made in order and run until a signal: engine, transfer, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
import uvicorn
import uvloop

from ..bootstrap import BootstrapClient, BootstrapServer, Route
from ..collector import WorkerFacts
from ..engine import Engine
from ..metrics import WorkerMetrics
from ..receiver import TransferReceiver
from ..sender import TransferSender
from ..service import Service
from ..transfer import Layout
from .application import Application
from .completions import ChatCompletions
from .control import Control
from .decode import DecodeRole
from .generate import Generate
from .information import Information
from .prefill import PrefillRole
from .roles import Role, UnifiedRole

if TYPE_CHECKING:
    from ..worker import WorkerConfig

# the router keeps idle connections for tens of seconds; closing one under its feet would fail a request.
_KEEP_ALIVE_SECONDS: Final = 600
_GIB: Final = 1 << 30

_log = logging.getLogger(__name__)


def serve(config: WorkerConfig, listeners: Mapping[str, socket.socket], started: float) -> None:
    """Run a worker on bound sockets until SIGTERM or SIGINT. Raises EngineError when the engine cannot be made.

    `started` is time.perf_counter() at the start of the process.
    """
    # steps are short and many; a second thread would only take the core from the other workers.
    torch.set_num_threads(1)
    loading = time.perf_counter()
    engine = Engine(config.engine, config.weights)
    facts = _facts(config, engine, time.perf_counter() - loading, time.perf_counter() - started)
    # what exists now lives as long as the process: keep the collector from walking it between steps.
    gc.collect()
    gc.freeze()
    uvloop.run(_run(config, engine, facts, listeners))


async def _run(
    config: WorkerConfig, engine: Engine, facts: WorkerFacts, listeners: Mapping[str, socket.socket]
) -> None:
    service = Service(engine)
    metrics = WorkerMetrics(facts, service.snapshot)
    async with contextlib.AsyncExitStack() as closers:
        service.attach(await _role(config, engine, metrics, service, listeners, closers), metrics)
        server = _HttpServer(_http_config(_application(config, engine, facts, metrics, service)))
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        driving = asyncio.create_task(service.run())
        serving = asyncio.create_task(server.serve(sockets=[listeners["port"]]))
        stopping = asyncio.create_task(stopped.wait())
        _log.info("%s: %s worker on %s:%d", config.name, config.role, *listeners["port"].getsockname()[:2])
        await asyncio.wait((driving, serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        # nothing in progress is finished: the supervisor wants the process gone, and needs no line for each request.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        server.should_exit = server.force_exit = True
        driving.cancel()
        stopping.cancel()
        await serving
        with contextlib.suppress(asyncio.CancelledError):
            await driving
        _log.info("%s: stopped", config.name)


async def _role(
    config: WorkerConfig,
    engine: Engine,
    metrics: WorkerMetrics,
    service: Service,
    listeners: Mapping[str, socket.socket],
    closers: contextlib.AsyncExitStack,
) -> Role:
    if config.role == "unified":
        return UnifiedRole(engine)
    layout = Layout(_fingerprint(config), engine.page_bytes)
    if config.role == "decode":
        receiver = TransferReceiver(layout)
        closers.push_async_callback(receiver.close)
        return DecodeRole(
            engine,
            metrics,
            receiver,
            BootstrapClient(layout),
            page_size=config.engine.page_size,
            service=service,
            room_timeout_seconds=config.room_timeout_seconds,
        )
    sender = TransferSender(layout)
    closers.push_async_callback(sender.close)
    await sender.start(listeners["transfer_port"])
    transfer_port = listeners["transfer_port"].getsockname()[1]
    bootstrap = BootstrapServer(
        Route(config.host, transfer_port, config.engine.page_size, layout.page_bytes, layout.fingerprint)
    )
    closers.push_async_callback(bootstrap.close)
    await bootstrap.start(listeners["bootstrap_port"])
    return PrefillRole(engine, metrics, sender, service=service, room_timeout_seconds=config.room_timeout_seconds)


def _application(
    config: WorkerConfig, engine: Engine, facts: WorkerFacts, metrics: WorkerMetrics, service: Service
) -> Application:
    context_length = config.engine.context_length
    return Application(
        metrics,
        ChatCompletions(service, engine.fault, config.served_model_name, context_length),
        Generate(service, context_length),
        Information(service, metrics, facts, _arguments(config)),
        Control(service, engine),
    )


class _HttpServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would raise them again at the end, and the exit would not be 0."""
        yield


def _http_config(application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        proxy_headers=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )


def _facts(config: WorkerConfig, engine: Engine, load_seconds: float, startup_seconds: float) -> WorkerFacts:
    return WorkerFacts(
        model_name=config.served_model_name,
        engine_type=config.role,
        max_total_tokens=engine.load.total_tokens,
        page_size=config.engine.page_size,
        pages=config.engine.num_pages,
        context_length=config.engine.context_length,
        weight_gb=config.weights.stat().st_size / _GIB,
        kv_cache_gb=engine.page_bytes * config.engine.num_pages / _GIB,
        load_weight_seconds=load_seconds,
        startup_seconds=startup_seconds,
        fault=config.engine.fault,
    )


def _fingerprint(config: WorkerConfig) -> str:
    """Equal on two workers when the KV of one means the same on the other: same weights, same page size."""
    digest = hashlib.sha256(config.weights.read_bytes())
    digest.update(str(config.engine.page_size).encode())
    return digest.hexdigest()[:32]


def _arguments(config: WorkerConfig) -> dict[str, Any]:
    """The configuration under SGLang's argument names, with the rest of the engine's under its own."""
    engine = config.engine
    return engine.model_dump(mode="json") | {
        "model_path": str(config.weights),
        "weights_sha256": hashlib.sha256(config.weights.read_bytes()).hexdigest(),
        "tokenizer_path": str(config.weights),
        "served_model_name": config.served_model_name,
        "host": config.host,
        "port": config.port,
        "disaggregation_mode": "null" if config.role == "unified" else config.role,
        "disaggregation_bootstrap_port": config.bootstrap_port,
        "load_balance_method": "follow_bootstrap_room" if config.role == "prefill" else "round_robin",
        "tp_size": 1,
        "dp_size": 1,
        "max_total_tokens": engine.max_total_tokens,
        # a decode engine has none, whatever it is told.
        "disable_radix_cache": not engine.prefix_cache or config.role == "decode",
        "disable_cuda_graph": not engine.capture,
        "tool_call_parser": "tiny_toolcaller",
        "random_seed": engine.seed,
        "eager": config.eager,
        "worker_name": config.name,
    }
