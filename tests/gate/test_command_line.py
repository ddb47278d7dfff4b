"""The command line: bad input is one line on stderr and exit 3, help is quick, data goes to stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pdwatch.gate.cli import build_app, main
from pdwatch.gate.console import Talk
from pdwatch.gate.derive import derive
from pdwatch.gate.errors import TargetError
from pdwatch.gate.policy import TargetsPolicy
from pdwatch.gate.preflight import preflight
from pdwatch.gate.run_folder import RunFolder, State
from pdwatch.gate.session import GateRequest
from pdwatch.gate.targets import Targets, arm_servers, existing_targets


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # a client that has heard enough goes away: that is no fault to print among what it says itself.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture
def model_server() -> Iterator[Callable[[int, bytes], str]]:
    """Starts servers that answer every GET with one status and body."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                return None

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


BAD_INPUT = [
    pytest.param(["gate", "--levels", "0,4"], ["level 0", "from 1 to 4096"], id="level-0"),
    pytest.param(["gate", "--set", "load.levles=[1]"], ["`load.levles`", "`load.levels`"], id="unknown-key"),
    pytest.param(
        ["gate", "--set", "load.workload.familes=1"], ["load.workload.familes", "families"], id="workload-key"
    ),
    pytest.param(["gate", "--config", "absent.toml"], ["absent.toml", "No such file"], id="no-policy-file"),
    pytest.param(["gate", "--fault", "nope"], ["nope", "index_k_aliased", "slow_step"], id="unknown-fault"),
    pytest.param(
        ["gate", "--weights", "absent.safetensors"], ["absent.safetensors", "does not exist"], id="no-weights"
    ),
    pytest.param(["gate", "--target", "ftp://x"], ["`targets.router`", "`ftp://x`"], id="not-http"),
    pytest.param(
        ["gate", "--target", "http://x/?key=hunter2"], ["`http://x/?«hidden»`", "without a query"], id="query"
    ),
    pytest.param(["gate", "--decode-url", "http://127.0.0.1:1"], ["add --target URL"], id="workers-without-router"),
    pytest.param(
        ["gate", "--target", "http://127.0.0.1:1", "--fault", "slow_step"], ["`--fault`"], id="fault-elsewhere"
    ),
    pytest.param(["gate", "--window-seconds", "soon"], ["soon", "pdwatch gate --help"], id="not-a-number"),
    pytest.param(["gate", "--wat"], ["--wat", "pdwatch gate --help"], id="unknown-option"),
    pytest.param(["report", "absent"], ["`absent` is not a run folder"], id="no-run"),
    pytest.param(["nonsense"], ["nonsense", "pdwatch --help"], id="unknown-command"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD_INPUT)
def test_bad_input_is_one_line_and_exit_3(
    arguments: list[str], told: list[str], in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for part in told:
        assert part in lines[0]
    assert list(in_empty_folder.iterdir()) == []


def test_an_unreachable_target_is_named_and_leaves_a_readable_folder(
    free_port: int, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"http://127.0.0.1:{free_port}"
    assert main(["gate", "-q", "--target", target, "--out", "run"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"target `{target}` is unreachable" in error
    assert "start it, or correct the URL" in error
    record = RunFolder.open(Path("run")).record
    assert record.state is State.FAILED
    assert "unreachable" in (record.failure or "")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, b"", "HTTP 404"),
        (200, b"<html>", "without JSON"),
        (200, b'{"data": []}', "lists no model"),
        (200, b"[" + b"1," * 2_000_000 + b"1]", "without JSON"),
        (200, b'{"data": [{"id": "\\u001b[2J"}]}', "(`\\x1b[2J`): serve it under a plain name"),
        (200, b'{"data": [{"id": "' + b"x" * 257 + b'"}]}', "serve it under a plain name"),
        (200, b'{"data": [{"id": 7}]}', "serve it under a plain name"),
    ],
    ids=["not-found", "a-web-page", "no-model", "endless", "control-character", "long-name", "number-as-name"],
)
def test_a_target_that_is_no_model_server_is_told(
    status: int,
    body: bytes,
    told: str,
    in_empty_folder: Path,
    model_server: Callable[[int, bytes], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["gate", "-q", "--target", model_server(status, body)]) == 3
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_was_named_must_be_there(
    role: str, free_port: int, model_server: Callable[[int, bytes], str]
) -> None:
    router, gone = model_server(200, b'{"data": [{"id": "tiny"}]}'), f"http://127.0.0.1:{free_port}"
    for embedded in (False, True):
        servers = tuple(arm_servers("candidate", router, None, **{"prefill": (), "decode": (), role: (gone,)}))
        targets = Targets({"candidate": router}, None, servers, embedded=embedded)
        if embedded:
            assert preflight(targets, None, None).workers[1].server_info is None
            continue
        with pytest.raises(TargetError, match=f"worker `{gone}` is unreachable .*start it, or correct --{role}-url"):
            preflight(targets, None, None)


@pytest.mark.parametrize(("status", "body"), [(404, b""), (200, b"<html>")], ids=["not-found", "a-web-page"])
def test_a_worker_that_answers_anything_is_there(
    status: int, body: bytes, model_server: Callable[[int, bytes], str]
) -> None:
    router = model_server(200, b'{"data": [{"id": "tiny"}]}')
    targets = existing_targets(TargetsPolicy(router=router, decode=(model_server(status, body),)))
    assert [worker.role for worker in preflight(targets, None, None).workers] == ["router", "decode"]


@pytest.mark.parametrize("is_up", [True, False], ids=["up", "gone"])
def test_a_reference_that_was_named_is_asked(
    is_up: bool, free_port: int, model_server: Callable[[int, bytes], str]
) -> None:
    router = model_server(200, b'{"data": [{"id": "tiny"}]}')
    reference = router if is_up else f"http://127.0.0.1:{free_port}"
    targets = existing_targets(TargetsPolicy(router=router, reference=reference))
    assert preflight(targets, None, None).reference_available is is_up


def test_no_baseline_wins_over_the_policy_file(in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("policy.toml").write_text('targets.router = "http://a"\ntargets.baseline = "http://b"\n')
    asked: list[str | None] = []

    def run_gate(request: GateRequest, talk: Talk) -> None:
        asked.append(request.policy.targets.baseline)
        raise TargetError("enough")

    monkeypatch.setattr("pdwatch.gate.session.run_gate", run_gate)
    assert [main(["gate", "-q", "--config", "policy.toml", *more]) for more in ([], ["--no-baseline"])] == [3, 3]
    assert asked == ["http://b", None]


def test_an_empty_token_variable_is_named(in_empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["gate", "-q", "--target", "http://127.0.0.1:1", "--bearer-token-environment", "NO_SUCH_TOKEN"]
    assert main(arguments) == 3
    assert "`NO_SUCH_TOKEN` is empty" in capsys.readouterr().err


def test_a_run_folder_in_use_is_refused(in_empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["gate", "-q", "--target", "http://127.0.0.1:1", "--out", "."]) == 3
    assert "not empty; choose another with --out" in capsys.readouterr().err


def test_a_password_in_a_url_is_refused_and_not_repeated(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", "-q", "--target", "http://user:hunter2@127.0.0.1:1"]) == 3
    error = capsys.readouterr().err
    assert "targets.bearer_token_environment" in error
    assert "hunter2" not in error
    assert list(in_empty_folder.iterdir()) == []


def test_report_prints_the_verdict_as_json_and_exits_with_it(
    recorded_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recorded_run.path), "--json"]) == 2
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert (document["result"], document["exit_code"]) == ("INCONCLUSIVE", 2)
    assert Path(document["report"]).exists()
    assert "judging the answers" in output.err


def test_report_prints_words_without_colour_when_piped(
    recorded_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", str(recorded_run.path), "-q"])
    output = capsys.readouterr()
    assert output.err == ""
    assert "INCONCLUSIVE The run cannot vouch" in output.out
    assert "\x1b" not in output.out


@pytest.mark.parametrize(
    ("model", "code"), [("another-model", 0), ("tiny-toolcaller", 2)], ids=["tokens unknown", "tokens never scored"]
)
def test_report_of_a_finished_run(recorded_run: RunFolder, model: str, code: int) -> None:
    # where tokens are known every right answer is held against the reference, and this folder has no scores.
    recorded_run.update(state=State.COMPLETE, reference_available=True, model=model)
    derive(recorded_run, None, finished=True)
    # four answers a level, each 0.74 s long and 0.5 s after the one before: two overlap
    assert main(["report", str(recorded_run.path), "-q"]) == code
    verdict = json.loads(recorded_run.verdict.read_text())
    assert [level["candidate"]["running_batch"] for level in verdict["levels"]] == [2, 2]


@pytest.mark.parametrize(
    "arguments", [[], *([command] for command in ("gate", "report", "up", "down", "status", "faults"))]
)
def test_help_reads_well_at_every_level(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: {' '.join(['pdwatch', *arguments])}" in text
    assert "[default: None]" not in text


def test_every_option_and_command_has_a_help_line() -> None:
    from typer.main import get_command

    group = get_command(build_app())
    commands = group.commands  # type: ignore[attr-defined]  # a group, as the root has commands
    running = {"gate", "report", "prove", "load", "load-worker"}
    assert set(commands) == {*running, "up", "down", "status", "faults", "version", "kernels", "export"}
    inner = [command for name in ("kernels", "export") for command in commands[name].commands.values()]
    for command in [*commands.values(), *inner]:
        assert command.help
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{command.name} {parameter.name}"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom pdwatch.gate.cli import main\nmain(['gate', '--help'])\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pyarrow', 'httpx', 'locust', 'gevent', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.3")
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pdwatch": "1.2.3"}


def test_a_fault_of_ours_keeps_its_traceback_and_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path) -> RunFolder:
        raise ZeroDivisionError("by \x1b[2J")

    monkeypatch.setattr("pdwatch.gate.run_folder.RunFolder.open", broken)
    assert main(["report", "."]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-2:] == [
        "ZeroDivisionError: by \\x1b[2J",
        "error: internal fault (ZeroDivisionError), please report it",
    ]


def test_control_characters_of_a_server_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hostile: str
) -> None:
    def refused(path: Path) -> RunFolder:
        raise TargetError(f"it said {hostile}")

    monkeypatch.setattr("pdwatch.gate.run_folder.RunFolder.open", refused)
    assert main(["report", "."]) == 3
    assert "\\x1b[31m\\u202e\\u200b" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, EOFError], ids=["ctrl-c", "end of input"])
def test_an_interrupted_command_is_no_verdict(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(path: Path) -> RunFolder:
        raise error

    monkeypatch.setattr("pdwatch.gate.run_folder.RunFolder.open", interrupted)
    assert main(["report", "."]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "error: stopped by SIGINT"


@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "words"])
def test_a_reader_that_leaves_does_not_change_the_verdict(form: list[str], recorded_run: RunFolder) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pdwatch.gate.cli", "report", str(recorded_run.path), "-q", *form]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (2, "")


def test_a_reader_that_leaves_a_list_makes_no_verdict() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pdwatch.gate.cli", "version"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert done.returncode != 1


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(path: Path) -> RunFolder:
        raise OSError(28, "No space left on device", "run.json")

    monkeypatch.setattr("pdwatch.gate.run_folder.RunFolder.open", full)
    assert main(["report", "."]) == 3
    assert capsys.readouterr().err == "error: No space left on device `run.json`\n"


HANGING = """
import sys
from pdwatch.gate import cli, session
def wait(targets, model, environment):
    print("waiting", file=sys.stderr, flush=True)
    import signal
    signal.pause()
session.preflight = wait
sys.exit(cli.main(["gate", "-q", "--target", "http://127.0.0.1:1", "--out", "run"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_signal_ends_the_run_in_order(number: signal.Signals, in_empty_folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGING], stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(number)
        error = process.stderr.read()
    assert process.returncode == 3
    assert error == f"error: stopped by {number.name}\n"
    assert RunFolder.open(Path("run")).record.failure == f"stopped by {number.name}"
