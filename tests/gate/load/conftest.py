"""A small model server, and results that need none."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pdwatch.gate.load.results import LevelResult, level_result
from pdwatch.loadgen.steady import Window
from pdwatch.loadgen.summary import Goodput, PhaseSummary
from pdwatch.loadgen.validity import ClientFacts, Validity

# what becomes of chat completion `number`: HTTP status 200 is an answer, 0 a closed connection.
Behaviour = Callable[[int], int]


# see tests/loadgen/test_client.py
TLS = Path(__file__).parents[2] / "data" / "tls"

# a few of what SGLang 0.5.23 answers at /server_info.
SGLANG_INFO = {"model_path": "small", "tp_size": 1, "mem_fraction_static": 0.5, "version": "0.5.23"}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # a client that goes away is no fault of ours to print; anything else is.
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


class ModelServer:
    """Answers chat completions with four words, as `behaviour` says."""

    def __init__(
        self, behaviour: Behaviour, *, is_sglang: bool, info: object, token: str | None, has_usage: bool, is_tls: bool
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        info = SGLANG_INFO if is_sglang else info
        lock = threading.Lock()
        pause = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
                    self._json(401, {"error": {"message": "no token"}})
                elif self.path == "/v1/models":
                    self._json(200, {"data": [{"id": "small"}]})
                elif self.path == "/server_info" and info is not None:
                    self._json(200, info)
                else:
                    self._json(404, {"detail": "Not Found"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    owner.bodies.append(body)
                    status = behaviour(len(owner.bodies) - 1)
                # time passes as on a real server; no test waits on it
                pause.wait(0.02)
                if status == 0:
                    self.close_connection = True
                elif status != 200:
                    self._json(status, {"error": {"message": f"no {status}"}})
                else:
                    self._stream()

            def _stream(self) -> None:
                chunks: list[dict[str, Any]] = [
                    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}]}
                    for word in ("a ", "b ", "c ", "d")
                ]
                chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                if has_usage:
                    chunks.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
                events = [json.dumps({"id": "x", "model": "small", **chunk}) for chunk in chunks]
                data = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _json(self, status: int, document: object) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                return None

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "https" if is_tls else "http"
        if is_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., ModelServer]]:
    """Starts model servers that are closed after the test."""
    servers: list[ModelServer] = []

    def start(
        behaviour: Behaviour = lambda number: 200,
        *,
        is_sglang: bool = False,
        info: object = None,
        token: str | None = None,
        has_usage: bool = True,
        is_tls: bool = False,
    ) -> ModelServer:
        server = ModelServer(behaviour, is_sglang=is_sglang, info=info, token=token, has_usage=has_usage, is_tls=is_tls)
        servers.append(server)
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def make_level(
    name: str = "4 users",
    *,
    good: int | None = None,
    reasons: tuple[str, ...] = (),
    is_bound_reached: bool = False,
    decision: str | None = None,
    look: int | None = None,
    users: int = 4,
    **changes: Any,
) -> LevelResult:
    """A level of 100 requests; `good` of them kept to the SLO, None without one."""
    goodput = None
    if good is not None:
        share = good / 100
        goodput = Goodput(
            slo="ttft ≤ 1 s",
            good=good,
            eligible=100,
            share=share,
            lower=share - 0.03,
            upper=min(1.0, share + 0.03),
            effective_trials=100,
            blocks=20,
            per_second=good / 10,
            broken={},
        )
    values: dict[str, Any] = {
        "window": Window(0.0, 10.0, "steady"),
        "sent": 100,
        "complete": 100,
        "cancelled": 0,
        "failed": 0,
        "error_share": 0.0,
        "outcomes": {"complete": 100},
        "examples": {},
        "sent_per_second": 10.0,
        "complete_per_second": 10.0,
        "output_tokens_per_second": 50.0,
        "prompt_tokens_per_second": 70.0,
        "in_flight_mean": 4.0,
        "goodput": goodput,
        "latencies": {},
        "token_bases": {},
        "without_usage": 0,
        "defects": {},
    }
    event = {
        "load": "closed",
        "level": users,
        "summary": PhaseSummary(**{**values, **changes}).to_record(),
        "client": ClientFacts().model_dump(mode="json"),
        "validity": Validity(is_valid=not reasons, reasons=reasons, is_bound_reached=is_bound_reached).model_dump(
            mode="json"
        ),
        "decision": decision,
    }
    return level_result(name, event, None, slo_share=0.95, look=look)


@pytest.fixture
def level() -> Callable[..., LevelResult]:
    """Builds levels; see `make_level`."""
    return make_level
