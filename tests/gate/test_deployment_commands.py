from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdwatch.gate.cli import main
from pdwatch.stack import take_down


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "deployment"
    take_down(tmp_path / "deployment")


def read_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_up_status_down_with_real_workers(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--directory", str(directory), "--no-reference", "--json"]) == 0
    brought_up = read_json(capsys)
    assert [process["name"] for process in brought_up["processes"]] == ["prefill-0", "decode-0", "router"]

    body = {"model": "tiny-toolcaller", "messages": [{"role": "user", "content": "Please say hello."}], "max_tokens": 4}
    url = f"{brought_up['endpoints']['router']}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=30, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] >= 1

    assert main(["status", "--directory", str(directory), "--json"]) == 0
    assert all(process["healthy"] for process in read_json(capsys)["processes"])

    assert main(["up", "--directory", str(directory)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "already runs" in captured.err

    assert main(["down", "--directory", str(directory)]) == 0
    assert main(["status", "--directory", str(directory)]) == 3
    assert f"no deployment runs in {directory}: start one with `pdwatch up`" in capsys.readouterr().err
    assert main(["down", "--directory", str(directory)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--prefill", "0"], "prefill is 0", id="no_prefill_worker"),
        pytest.param(["--fault", "gremlin"], "no fault is named gremlin: use one of ", id="fault"),
        pytest.param(["--engine", "pages=3"], "no key is named pages: use one of role, ", id="engine_key"),
        pytest.param(["--engine", "num_pages"], "--engine num_pages is not KEY=VALUE", id="engine_form"),
        pytest.param(["--weights", "/nowhere.safetensors"], "/nowhere.safetensors does not exist", id="weights"),
        pytest.param(["--port", "many"], "Invalid value for '--port'", id="port_form"),
    ],
)
def test_up_refuses_in_one_line(
    directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["up", "--directory", str(directory), *arguments]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("error: ") == 1 and captured.err.count("\n") == 1


def test_up_names_a_port_in_use(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert main(["up", "--directory", str(directory), "--port", str(port)]) == 3
    assert f"port {port} for router cannot be bound: address already in use" in capsys.readouterr().err


def test_faults_are_listed_for_people_and_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--json"]) == 0
    listed = read_json(capsys)
    assert {"name", "where", "signature", "description"} == listed[0].keys()
    assert main(["faults"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # a header, then one line for each
    assert [line.split()[0] for line in lines] == ["name", *(fault["name"] for fault in listed)]
