"""`pdwatch load` from end to end, against small servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdwatch.gate.cli import main
from pdwatch.loadgen import read_transcripts
from pdwatch.loadgen.row import read_rows

# a machine that is busy with other tests is late, and nothing here depends on it.
QUICK = ["--warmup", "0.1", "--duration", "0.5", "--max-loop-lag", "10", "-q"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_measured(serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve()
    code = main(["load", server.url, "--levels", "1,2", "--out", "run", "--max-tokens", "9", *QUICK])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert re.search(r"^1 user .* valid", out, re.MULTILINE)
    assert re.search(r"^2 users .* valid", out, re.MULTILINE)
    assert out.endswith("results: run/load.json\n")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"load.json", "plan.json", "logs", "transcripts.jsonl.zst", "requests.jsonl.zst"}
    document = json.loads((tmp_path / "run" / "load.json").read_text())
    assert (document["model"], document["dialect"]) == ("small", "openai")
    rows = list(read_rows(tmp_path / "run" / "requests.jsonl.zst"))
    assert (
        len(rows) == len(server.bodies) == sum(1 for _ in read_transcripts(tmp_path / "run" / "transcripts.jsonl.zst"))
    )
    assert {row.level for row in rows} == {1, 2}
    assert {body["model"] for body in server.bodies} == {"small"}
    assert {row.output_tokens for row in rows} == {5}


def test_as_json_with_an_slo(serve, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", "60", "--levels", "2", "--slo", "ttft=1us", "--check-slo", "--json", *QUICK]
    code = main(["load", serve(is_sglang=True).url, *arguments])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["exit_code"]) == (1, 1)
    assert (document["dialect"], document["dialect_reason"]) == ("sglang", "it answers /server_info")
    (level,) = document["levels"]
    assert (level["slo"], level["summary"]["goodput"]["good"]) == ("missed", 0)
    assert level["validity"]["is_valid"]


def test_failures_are_told_by_class_with_an_example(serve, capsys: pytest.CaptureFixture[str]) -> None:
    def behave(number: int) -> int:
        return 503 if number % 3 == 1 else 0 if number % 3 == 2 else 200

    code = main(["load", serve(behave).url, "--levels", "2", *QUICK])
    out = capsys.readouterr().out
    assert code == 0
    assert re.search(r'2 users: http_error \d+ of \d+, e\.g\. HTTP 503: \{"error": \{"message": "no 503"\}\}', out)
    assert re.search(r"2 users: reset \d+ of \d+, e\.g\. the server closed the connection", out)


def test_a_model_that_is_not_there(serve, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [argument for argument in QUICK if argument != "-q"]
    code = main(["load", serve(lambda number: 404).url, "--levels", "1", "--model", "big", *arguments])
    out, err = capsys.readouterr()
    assert code == 3
    assert "warning: the server lists small, not `big`" in err
    assert "no answer" in out
    assert re.search(r"1 user: http_error \d+ of \d+, e\.g\. HTTP 404", out)


def test_a_token_from_the_environment(
    serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve(token="sesame").url
    assert main(["load", url, *QUICK]) == 3
    assert "refuses us with HTTP 401: put its token into an environment variable" in capsys.readouterr().err
    monkeypatch.setenv("DOOR", "sesame")
    assert main(["load", url, "--levels", "1", "--bearer-token-env", "DOOR", "--out", "run", *QUICK]) == 0
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--levels", "x"], "--levels `x` is no list of numbers"),
        (["--slo", "ttft"], "SLO 'ttft' is no limit"),
        (["--dialect", "klingon"], "'klingon'"),
        (["--ca-file", "absent.pem"], "--ca-file `absent.pem` holds no certificates (No such file or directory)"),
        (["--out", "/proc/nowhere"], "cannot create run folder `/proc/nowhere`"),
    ],
)
def test_refused(serve, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", serve().url, *arguments]) == 3
    err = capsys.readouterr().err
    assert complaint in err
    assert err.startswith("error: ") and err.count("\n") == 1


def test_nobody_there(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", f"http://127.0.0.1:{free_port}"]) == 3
    assert "is unreachable" in capsys.readouterr().err


def test_a_search(serve, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--find-capacity", "--slo", "e2e=30s", "--slo-share", "0.5", "--most", "2", *QUICK]
    assert main(["load", serve().url, *arguments]) == 0
    out = capsys.readouterr().out
    assert "capacity: 2 users meets 50 % of requests within the SLO, higher was not tried, at 95 % confidence" in out


def test_stopped_it_keeps_what_it_has(serve, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "pdwatch.gate.cli", "load", serve().url, "--levels", "1,2", "--out", "run"]
    options = ["--warmup", "0", "--duration", "1", "--max-loop-lag", "10"]
    process = subprocess.Popen(
        [*program, *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "2 users …" in line:
            process.send_signal(signal.SIGINT)
            break
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "1 user " in out
    assert "the run ended early: stopped by SIGINT" in out
    document: dict[str, Any] = json.loads((tmp_path / "run" / "load.json").read_text())
    assert [level["name"] for level in document["levels"]] == ["1 user"]
    assert sum(1 for _ in read_transcripts(tmp_path / "run" / "transcripts.jsonl.zst")) > 0


def test_the_help_names_every_option() -> None:
    command = [sys.executable, "-m", "pdwatch.gate.cli", "load", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    page = (Path(__file__).parents[3] / "docs" / "loadgen.md").read_text(encoding="utf-8")
    options = set(re.findall(r"(--[a-z][a-z-]+)", shown.stdout)) - {"--help"}
    assert {option for option in options if f"`{option}" not in page} == set()
