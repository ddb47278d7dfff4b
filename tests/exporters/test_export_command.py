from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdwatch.exporters import CaptureFailed, RecordingInvalid, TraceInvalid
from pdwatch.gate.commands.export import export

TRACE = Path(__file__).parents[1] / "data" / "traces" / "h200_captured.json.gz"
SECONDS = 30.0
PROGRAM = "from pdwatch.gate.commands.export import export; export(prog_name='export')"


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """An exporter in a process of its own, and its port."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "/metrics" in line:
                    yield process, int(line.split(":")[-1].split("/")[0])
                    break
            else:
                pytest.fail("it never served")
        finally:
            process.kill()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_demo_shows_eight_gpus_and_stops_in_order() -> None:
    with serving("gpu", "--demo", "--process-memory") as (process, port):
        status, text = get(port, "/metrics")
        assert status == 200
        assert text.count("\ngpu_up{") == 8
        assert 'gpu_info{driver_version="580.159.04"' in text
        assert get(port, "/health") == (200, "ok\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_without_a_gpu_it_serves_and_says_what_is_missing() -> None:
    with serving("gpu") as (process, port):
        status, text = get(port, "/metrics")
        assert status == 200
        assert "pdwatch_exporter_up 0.0" in text and "\ngpu_" not in text
        status, reason = get(port, "/health")
        assert status == 503 and "--demo" in reason
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def test_a_trace_is_profiled_shown_and_served(tmp_path: Path) -> None:
    history = str(tmp_path / "profiles.jsonl")
    result = CliRunner().invoke(export, ["profile", "--file", str(TRACE), "--name", "lab", "--history", history])
    assert result.exit_code == 0, result.output
    assert "lab device0: 10 steps of" in result.output
    assert "gaps" in result.output and "nvjet_sm90" in result.output
    with serving("profile", "--history", history) as (_, port):
        status, text = get(port, "/metrics")
        assert status == 200
        assert 'pdwatch_profile_share_ratio{group="gaps",rank="device0",target="lab"}' in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["profile", "--file", "/none.json"], TraceInvalid),
        (["profile", "--target", "x", "--once"], CaptureFailed),
        (["gpu", "--recording", "/none.json"], RecordingInvalid),
    ],
)
def test_mistakes_are_named(arguments: list[str], error: type[Exception]) -> None:
    assert isinstance(CliRunner().invoke(export, arguments).exception, error)


def test_once_needs_a_target() -> None:
    result = CliRunner().invoke(export, ["profile", "--once"])
    assert result.exit_code == 2
    assert "--once needs a --target" in result.output
