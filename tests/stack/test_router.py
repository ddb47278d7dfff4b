from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pdwatch.stack.router import PrefillTarget, counts_as_healthy, router_plan


class Readiness(BaseHTTPRequestHandler):
    status = 200
    body = b""

    def do_GET(self) -> None:
        assert self.path == "/readiness"
        self.send_response(type(self).status)
        self.send_header("Content-Length", str(len(type(self).body)))
        self.end_headers()
        self.wfile.write(type(self).body)

    def log_message(self, format: str, *arguments: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Readiness) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


# the bodies of the first two are what release 0.3.2 sends
@pytest.mark.parametrize(
    ("status", "body", "ready"),
    [
        pytest.param(200, '{"status":"ready","healthy_workers":2,"total_workers":2}', True, id="ready"),
        pytest.param(503, '{"status":"not ready","reason":"insufficient healthy workers"}', False, id="no_worker"),
        pytest.param(200, '{"status":"ready","healthy_workers":1,"total_workers":2}', False, id="one_of_two"),
        pytest.param(200, json.dumps([2]), False, id="not_an_object"),
        pytest.param(200, "ready", False, id="not_json"),
    ],
)
def test_ready_means_all_workers(
    server: str, monkeypatch: pytest.MonkeyPatch, status: int, body: str, ready: bool
) -> None:
    monkeypatch.setattr(Readiness, "status", status)
    monkeypatch.setattr(Readiness, "body", body.encode())
    assert counts_as_healthy(server, workers=2) is ready


def test_a_router_that_does_not_listen_is_not_ready(free_port: int) -> None:
    assert not counts_as_healthy(f"http://127.0.0.1:{free_port}", workers=2)


def test_command_names_every_worker_and_hides_no_fault() -> None:
    plan = router_plan(
        port=8000,
        metrics_port=9000,
        prefill=[PrefillTarget("http://127.0.0.1:1", 11), PrefillTarget("http://127.0.0.1:2", 12)],
        decode=["http://127.0.0.1:3"],
    )
    command = " ".join(plan.arguments)
    assert "--prefill http://127.0.0.1:1 11 --prefill http://127.0.0.1:2 12 --decode http://127.0.0.1:3" in command
    assert "--host 127.0.0.1 --port 8000 --prometheus-host 127.0.0.1 --prometheus-port 9000" in command
    assert "--disable-retries --disable-circuit-breaker" in command
    assert plan.url == "http://127.0.0.1:8000"
