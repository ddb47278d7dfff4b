"""`pdwatch load` from end to end, against small servers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdwatch.gate.cli import main
from pdwatch.gate.errors import TargetError
from pdwatch.gate.load.options import LoadOptions
from pdwatch.gate.load.probe import probe
from pdwatch.loadgen import read_transcripts
from pdwatch.loadgen.row import read_rows

# a machine that is busy with other tests is late, and nothing here depends on it.
SILENT = ["--warmup", "0.1", "--max-loop-lag", "10", "-q"]
QUICK = ["--duration", "0.5", *SILENT]


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
    arguments = ["--requests", "60", "--levels", "2", "--slo", "ttft=1us", "--check-slo", "--json", *SILENT]
    code = main(["load", serve(is_sglang=True).url, *arguments])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["exit_code"]) == (1, 1)
    assert (document["dialect"], document["dialect_reason"]) == ("sglang", "/server_info shows SGLang's settings")
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
    arguments = ["--find-capacity", "--slo", "e2e=30s", "--slo-share", "0.5", "--most", "2", *SILENT]
    assert main(["load", serve().url, *arguments]) == 0
    out = capsys.readouterr().out
    assert "capacity: 2 users meets 50 % of requests within the SLO, higher was not tried, at 95 % confidence" in out


def test_a_search_says_what_it_looks_at(serve, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--find-capacity", "--slo", "e2e=30s", "--slo-share", "0.5", "--most", "2"]
    assert main(["load", serve().url, *arguments, *(option for option in SILENT if option != "-q")]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"1 user, look 1 of at most 4: \d+ requests", err)
    assert re.search(r"2 users, look 1 of at most 4: \d+ requests, about \d+ s", err)
    assert len(re.findall(r"^\d users? .* meets$", out, re.MULTILINE)) == 2


def test_a_search_whose_time_is_over_says_what_it_knows(serve, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--find-capacity", "--slo", "e2e=30s", "--slo-share", "0.5", "--most", "64", "--most-minutes", "0.01"]
    assert main(["load", serve().url, *arguments, *SILENT]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^capacity: .*; the search ended at \d+ users?: the time allowed is over", out, re.MULTILINE)


def test_a_server_that_ignores_stream_options(serve, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(has_usage=False).url
    assert main(["load", url, "--levels", "1", *QUICK]) == 3
    told = capsys.readouterr().out
    assert re.search(r"1 user: truncated \d+ of \d+, e\.g\. no usage; --no-usage takes such answers", told)
    assert main(["load", url, "--levels", "1", "--no-usage", "--out", "run", *QUICK]) == 0
    rows = list(read_rows(Path("run") / "requests.jsonl.zst"))
    assert {row.outcome for row in rows} == {"complete"}
    assert {row.output_tokens for row in rows} == {None}
    assert all(row.time_to_first_token_seconds is not None for row in rows)


@pytest.mark.parametrize(
    ("info", "dialect", "reason"),
    [
        (None, "openai", "it answers none of /server_info, /get_server_info"),
        ({"version": "1.0", "model": "small"}, "openai", "/server_info answers, but not as SGLang does"),
        (["tp_size"], "openai", "/server_info answers, but not as SGLang does"),
        ({"disaggregation_mode": "null"}, "sglang", "/server_info shows SGLang's settings"),
        ({"prefill": [{"mem_fraction_static": 0.5}]}, "sglang", "/server_info shows SGLang's settings"),
    ],
)
def test_the_dialect_is_what_only_sglang_tells(serve, info: object, dialect: str, reason: str) -> None:
    server = probe(LoadOptions(serve(info=info).url))
    assert (server.dialect, server.dialect_reason) == (dialect, reason)


def test_a_server_with_a_certificate_of_its_own(serve) -> None:
    url = serve(is_tls=True).url
    certificate = Path(__file__).parents[2] / "data" / "tls" / "certificate.pem"
    assert probe(LoadOptions(url, ca_file=certificate)).models == probe(LoadOptions(url, insecure=True)).models
    with pytest.raises(TargetError, match=r"is unreachable .*certificate verify failed"):
        probe(LoadOptions(url))


@pytest.mark.parametrize("token", ["", "two\nlines", "schlüssel"])
def test_a_token_that_is_none(serve, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("DOOR", token)
    with pytest.raises(TargetError, match=r"environment variable `DOOR` (is empty|holds more than a token): put"):
        probe(LoadOptions(serve().url, bearer_token_environment="DOOR"))


def test_a_source_s_file_is_kept_and_told(serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'kind = "text"\nmax_tokens = 9\n[shared_prefix]\ngroups = 2\ntokens = 32\n'
    (tmp_path / "mine.toml").write_text(text)
    options = [option for option in QUICK if option != "-q"]
    arguments = ["--source", "mine.toml", "--levels", "1", "--cancel-rate", "0.5", "--out", "run", *options]
    assert main(["load", serve().url, *arguments]) == 0
    assert "requests text: max_tokens 9, shared_prefix {groups: 2, tokens: 32}" in capsys.readouterr().err
    assert (tmp_path / "run" / "source.toml").read_text() == text
    document = json.loads((tmp_path / "run" / "load.json").read_text())
    assert (document["plan"]["source"]["shared_prefix"]["groups"], document["plan"]["cancel_rate"]) == (2, 0.5)


def test_a_run_loads_no_more_than_it_needs(serve) -> None:
    code = (
        "import sys\nfrom pdwatch.gate.cli import main\nstatus = main(sys.argv[1:])\n"
        "heavy = {'httpx', 'rich', 'numpy', 'scipy', 'pyarrow', 'torch', 'locust', 'gevent', 'psutil', 'jinja2',\n"
        "         'pdwatch.stack', 'pdwatch.correctness', 'pdwatch.gate.policy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    command = [sys.executable, "-c", code, "load", serve().url, "--levels", "1", *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_driver_is_a_copy_of_the_command(serve, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "pdwatch.gate.cli", "load", serve().url, "--levels", "1", "--out", "run"]
    process = subprocess.Popen(
        [*program, "--warmup", "0", "--duration", "60"], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "1 user …" in line:
            break
    (driver,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert Path(f"/proc/{driver}/cmdline").read_bytes() == Path(f"/proc/{process.pid}/cmdline").read_bytes()
    # a command that is killed takes the load with it.
    descriptor = os.pidfd_open(int(driver))
    process.kill()
    process.communicate(timeout=60)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(30_000)
    os.close(descriptor)


def test_a_copy_that_breaks_off_is_told_with_its_last_words(serve, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "pdwatch.gate.cli", "load", serve().url, "--levels", "1", "--out", "run", "-q"]
    process = subprocess.Popen(
        [*program, "--warmup", "0", "--duration", "60"], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    journal = tmp_path / "run" / "transcripts.jsonl.zst"
    while not journal.exists() and process.poll() is None:
        os.sched_yield()
    (driver,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(driver), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert re.fullmatch(r"error: load generator was killed by SIGKILL: .* \(log: run/logs/loadgen\.log\)\n", err)


@pytest.mark.parametrize("scale", [[], ["--processes", "2"]], ids=["one", "two"])
def test_stopped_it_keeps_what_it_has(serve, tmp_path: Path, scale: list[str]) -> None:
    program = [sys.executable, "-m", "pdwatch.gate.cli", "load", serve().url, "--levels", "1,2", "--out", "run"]
    options = ["--warmup", "0", "--duration", "1", "--max-loop-lag", "10", *scale]
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
