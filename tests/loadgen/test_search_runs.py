"""A search through a driver's process and through several, against a server that takes a while for each answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

DRIVE = ("drive",)
LEAD = ("scale.lead", "--processes", "2")
# behaviour is looked at here, on machines of any load.
LIMITS = {
    "most_loop_lag_p99_seconds": 10,
    "most_loop_lag_seconds": 60,
    "most_cpu_share": 10,
    "least_in_flight_share": 0,
    "most_send_backlog_seconds": 60,
}


@pytest.fixture
def answering(serve, stream, chunked):
    """A server that answers each chat completion in 20 ms."""
    pause = threading.Event()

    def play(connection: socket.socket, request: bytes) -> bool:
        if request.startswith(b"GET "):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return True
        # time passes as on a real server; no test waits on it
        pause.wait(0.02)
        connection.sendall(chunked(stream("tool_call")))
        return True

    return serve(play)


def run(directory: Path, command: tuple[str, ...], url: str, phase: dict[str, Any], **changes: Any) -> list[Any]:
    plan = {
        "seed": 3,
        "targets": {"candidate": url},
        "model": "m",
        "cancel_rate": 0,
        "slo": {"e2e_seconds": 20},
        "limits": LIMITS,
        "phases": [{"index": 0, "arm": "candidate", "level": 2, "warmup_seconds": 0.1, **phase}],
        **changes,
    }
    (directory / "plan.json").write_text(json.dumps(plan))
    module, *options = command
    words = [sys.executable, "-m", f"pdwatch.loadgen.{module}", "--plan", str(directory / "plan.json"), *options]
    done = subprocess.run(
        [*words, "--out", str(directory / "out")], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("command", [DRIVE, LEAD])
def test_a_rate_that_the_bound_holds_back_misses(tmp_path: Path, answering, command: tuple[str, ...]) -> None:
    """Two in flight for 20 ms are 100 requests/s at most, and every one of them is within the SLO."""
    search = {"kind": "rate", "start": 400, "most": 400, "least_seconds": 0.5}
    load = {"kind": "open", "rate_per_second": 1}
    events = run(tmp_path, command, answering.url, {"load": load}, search=search)
    (end,) = (event for event in events if event["event"] == "phase_end")
    assert end["validity"]["is_bound_reached"], end["validity"]
    assert (end["decision"], end["search_load"], end["summary"]["goodput"]["share"]) == ("misses", 400, 1)
    assert events[-1]["capacity"].startswith("400 requests/s misses 95 % of requests within the SLO")


@pytest.mark.parametrize("command", [DRIVE, LEAD])
def test_users_within_the_slo_meet_it(tmp_path: Path, answering, command: tuple[str, ...]) -> None:
    # a look is of twenty requests: it takes two or three to be sure.
    search = {"start": 2, "most": 2, "target_share": 0.5, "confidence": 0.8}
    events = run(tmp_path, command, answering.url, {}, search=search)
    ends = [event for event in events if event["event"] == "phase_end"]
    assert [(end["search_load"], end["level"], end["phase"]) for end in ends] == [(2, 2, n) for n in range(len(ends))]
    assert ends[-1]["decision"] == "meets"
    assert events[-1]["capacity"].startswith("2 users meets 50 % of requests within the SLO, higher was not tried")


@pytest.mark.parametrize("command", [DRIVE, LEAD])
def test_a_client_at_its_limit_is_given_every_look(tmp_path: Path, answering, command: tuple[str, ...]) -> None:
    search = {"start": 1, "most": 2, "target_share": 0.5, "looks": 2}
    limits = {**LIMITS, "most_cpu_share": 0}
    events = run(tmp_path, command, answering.url, {}, search=search, limits=limits)
    ends = [event for event in events if event["event"] == "phase_end"]
    assert [(end["search_load"], end["decision"]) for end in ends] == [(1, None), (1, None)]
    assert "the search ended at 1 users: the client was the limit: " in events[-1]["capacity"]
