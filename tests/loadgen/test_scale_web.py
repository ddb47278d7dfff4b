"""The web UI of a run on several drivers, and users of one's own locustfile."""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pdwatch.loadgen.errors

CHAT = Path(pdwatch.loadgen.errors.__file__).parent / "chat.py"


@pytest.fixture
def answering(serve, stream, chunked):
    """A server that answers each chat completion, every fifth with a stream that is cut short."""
    pause = threading.Event()
    asked: list[bytes] = []

    def play(connection: socket.socket, request: bytes) -> bool:
        if request.startswith(b"GET "):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return True
        asked.append(request)
        data = chunked(stream("no_done" if len(asked) % 5 == 0 else "tool_call"), 300)
        connection.sendall(data[:500])
        # time passes as on a real server; no test waits on it
        pause.wait(0.01)
        connection.sendall(data[500:])
        return True

    return serve(play)


@pytest.fixture
def lead(tmp_path: Path, answering, free_port: int) -> Iterator[subprocess.Popen[str]]:
    """A run with a web UI at `free_port`: a short phase, and one of a minute."""
    phase = {"arm": "candidate", "level": 4, "warmup_seconds": 0.1}
    plan = {
        "seed": 1,
        "targets": {"candidate": answering.url},
        "model": "tiny-toolcaller",
        "cancel_rate": 0,
        "slo": {"ttft_seconds": 60},
        "phases": [{**phase, "index": 0, "window_seconds": 0.5}, {**phase, "index": 1, "window_seconds": 60}],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [
        sys.executable,
        "-m",
        "pdwatch.loadgen.scale.lead",
        "--processes",
        "1",
        "--web",
        f"127.0.0.1:{free_port}",
    ]
    command += ["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate(timeout=60)


def read(url: str, data: bytes | None = None, **headers: str) -> bytes:
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        body: bytes = response.read()
    return body


def test_the_web_ui_shows_our_figures(lead: subprocess.Popen[str], free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    events = until_progress_of(lead, phase=1)
    assert {"event": "web", "url": f"{url}/?tab=streams"} in events
    page = read(url).decode()
    arguments = json.loads(page.partition("window.templateArgs = ")[2].partition("\n")[0])
    assert [tab["key"] for tab in arguments["extended_tabs"]] == ["streams", "phases"]
    columns = [column["key"] for column in arguments["extended_tables"][0]["structure"]]
    assert columns == ["figure", "value", "p50", "p90", "p99", "note"]
    stats = json.loads(read(f"{url}/stats/requests"))
    assert (stats["state"], stats["worker_count"]) == ("running", 1)
    shown = {table["key"]: table["data"] for table in stats["extended_stats"]}
    live = {line["figure"]: line for line in shown["streams"]}
    for name in ("TTFT", "TPOT", "ITL", "E2E"):
        assert all(line.endswith(("ms", "s")) for line in (live[name]["p50"], live[name]["p90"], live[name]["p99"]))
    assert int(live["Outcome truncated"]["value"]) > 0 < int(live["Complete"]["value"])
    assert 0 < float(live["Goodput"]["value"].rstrip("%")) < 100
    assert live["Validity"]["value"].startswith("phase before: ")
    assert all(set(line) == set(columns) for line in shown["streams"])
    (ended,) = shown["phases"]
    assert ended["phase"] == "candidate, closed, 4 users" and ended["ttft_p99"].endswith("ms")
    check_locusts_own(stats)


def until_progress_of(process: subprocess.Popen[str], phase: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "progress" and events[-1]["phase"] == phase:
            return events
    raise AssertionError(f"it ended before: {process.stderr.read() if process.stderr else ''}")


def check_locusts_own(stats: dict[str, Any]) -> None:
    """Locust's figures are of complete requests, in milliseconds, and not of two digits."""
    entry = stats["stats"][0]
    assert (entry["method"], entry["name"]) == ("E2E", "candidate, level 4")
    assert 0 < entry["num_failures"] < entry["num_requests"]
    percentiles = [entry[name] for name in entry if name.startswith("response_time_percentile")]
    # each answer takes 10 ms at least; a failure's time is not among them
    assert percentiles and all(10 <= value < 10_000 for value in percentiles)
    assert any(
        len(str(value).replace(".", "").lstrip("0")) > 2 for value in (*percentiles, entry["median_response_time"])
    )
    assert any("truncated" in error["error"] for error in stats["errors"])


def test_the_web_ui_takes_no_orders_from_elsewhere(lead: subprocess.Popen[str], free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    until_progress_of(lead, phase=1)
    answer = json.loads(read(f"{url}/swarm", b"user_count=100&spawn_rate=1"))
    assert not answer["success"] and "The plan says" in answer["message"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        read(f"{url}/stop", b"", Origin="http://elsewhere.example")
    assert refused.value.code == 403
    refused.value.close()
    read(f"{url}/stop", b"", Origin=url)
    _, err = lead.communicate(timeout=60)
    assert (lead.returncode, err) == (1, "loadgen: stopped in the web UI\n")


def test_a_web_port_that_is_taken(tmp_path: Path, lead: subprocess.Popen[str], free_port: int) -> None:
    until_progress_of(lead, phase=1)
    command = [*map(str, lead.args)]  # type: ignore[arg-type]
    command[command.index("--out") + 1] = str(tmp_path / "other")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert (
        done.stderr
        == f"loadgen: web UI: 127.0.0.1:{free_port} cannot be listened on (Address already in use); choose another\n"
    )


def example() -> str:
    """The locustfile in the docstring of `pdwatch.loadgen.chat`."""
    text = ast.get_docstring(ast.parse(CHAT.read_text())) or ""
    return "\n".join(line[4:] for line in text.splitlines() if line.startswith("    ") or not line)


def test_the_example_is_a_locustfile(tmp_path: Path, answering) -> None:
    path = tmp_path / "locustfile.py"
    path.write_text(example())
    assert sum(bool(line.strip()) for line in example().splitlines()) <= 10
    command = [sys.executable, "-m", "locust", "-f", str(path), "--headless", "-u", "2", "-r", "2", "-t", "2s"]
    done = subprocess.run(
        [*command, "--host", answering.url, "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    # locust's own way to say that requests failed
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    for title in ("TTFT", "E2E"):
        found = re.search(rf"^{title}\s.*p50 ([\d.]+) ms .*\((\d+) values\)$", done.stderr, re.MULTILINE)
        assert found is not None, done.stderr
        assert int(found[2]) > 0
    (entry,) = json.loads(done.stdout[done.stdout.index("[") :])
    assert (entry["method"], entry["name"]) == ("E2E", "/v1/chat/completions")
    assert entry["num_requests"] > entry["num_failures"] > 0
    assert entry["num_none_requests"] == entry["num_failures"]
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in answering.requests]
    assert bodies[0]["max_tokens"] == 64 and bodies[0]["stream"] and bodies[0]["stream_options"]["include_usage"]
