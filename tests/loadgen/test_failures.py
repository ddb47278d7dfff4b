"""What the driver does when its server, its clerk or its own machine fails."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from pdwatch.loadgen import JOURNAL_NAME, LoadgenError, Outcome, Phase, PlanError, read_transcripts
from pdwatch.loadgen.descriptors import check_limit
from pdwatch.loadgen.feeder import Feeder
from pdwatch.loadgen.share import Share
from pdwatch.loadgen.transcript import Label

MODELS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def answering(serve, stream, chunked):
    """A server that answers in 20 ms."""
    pause = threading.Event()

    def play(connection: socket.socket, request: bytes) -> bool:
        if not request.startswith(b"GET "):
            # time passes as on a real server; no test waits on it
            pause.wait(0.02)
        connection.sendall(MODELS if request.startswith(b"GET ") else chunked(stream("tool_call")))
        return True

    return serve(play)


@pytest.fixture
def refusing(serve):
    """A server that is busy."""
    return serve(lambda c, request: c.sendall(MODELS if request.startswith(b"GET ") else BUSY) or True)


def start(directory: Path, url: str, phase: dict[str, Any], plan: dict[str, Any] | None = None, **options: Any):
    """The driver's process, for a plan of one phase."""
    phase = {"index": 0, "arm": "candidate", "level": 4, "warmup_seconds": 0, "window_seconds": 1, **phase}
    whole = {
        "seed": 3,
        "targets": {"candidate": url},
        "model": "m",
        "cancel_rate": 0,
        "phases": [phase],
        **(plan or {}),
    }
    (directory / "plan.json").write_text(json.dumps(whole))
    command = [sys.executable, "-m", "pdwatch.loadgen.drive", "--plan", str(directory / "plan.json")]
    return subprocess.Popen(
        [*command, "--out", str(directory / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def read_event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """The next event of this name."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == name:
            return event
    raise AssertionError(f"no {name} event came")


def test_a_stopped_driver_is_no_valid_client(tmp_path: Path, answering) -> None:
    process = start(tmp_path, answering.url, {"window_seconds": 3})
    read_event(process, "phase_start")
    for _ in range(2):
        process.send_signal(signal.SIGSTOP)
        # the driver stands still for this long: that is the fault itself
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        read_event(process, "progress")
    end = read_event(process, "phase_end")
    assert finish(process)[0] == 0
    # 10 % of the time: far more than the one sample in a hundred that the 99th percentile forgives.
    assert end["client"]["loop_lag_p99_seconds"] > 0.2
    assert any("loop lag p99" in reason for reason in end["validity"]["reasons"])


def test_a_server_that_dies_is_not_asked_ever_faster(tmp_path: Path, answering) -> None:
    process = start(tmp_path, answering.url, {"window_seconds": 3, "level": 8})
    read_event(process, "progress")
    answering.close()
    end = read_event(process, "phase_end")
    assert finish(process)[0] == 0
    failed = [t for t in read_transcripts(tmp_path / "out" / JOURNAL_NAME) if t.outcome is Outcome.CONNECT_ERROR]
    # in 2 s a user tries after 0, 50, 150, 350, 750 and 1550 ms.
    assert 8 <= len(failed) <= 8 * 7
    client = end["client"]
    assert client["back_off_seconds"] > 8 * 1.0
    # the server fails, not the client: its users are not meant to be in flight while they rest.
    assert client["intended_in_flight"] == pytest.approx(8 - client["back_off_seconds"] / 3, abs=0.5)
    assert not any("in flight" in reason for reason in end["validity"]["reasons"])


def test_a_busy_server_is_left_alone_for_as_long_as_it_says(tmp_path: Path, refusing) -> None:
    status, events, _ = finish(start(tmp_path, refusing.url, {"window_seconds": 2.5}))
    assert status == 0
    # each of four users asks at 0, 1 and 2 s.
    assert 8 <= events[-2]["errors"]["http_error"] <= 12


def test_an_open_loop_keeps_to_its_schedule_whatever_comes(tmp_path: Path, refusing) -> None:
    load = {"kind": "open", "rate_per_second": 100, "arrivals": "constant"}
    status, events, _ = finish(start(tmp_path, refusing.url, {"load": load, "level": 50}))
    assert status == 0
    end = events[-2]
    assert end["sent"]["measured"] == pytest.approx(100, abs=1)
    assert end["errors"]["http_error"] == sum(end["sent"].values())
    assert end["client"]["back_off_seconds"] == 0


@pytest.mark.parametrize(
    "phase",
    [
        {"level": 2},
        {"load": {"kind": "open", "rate_per_second": 20}},
        {"level": 2, "requests": 100_000},
        {"level": 2, "warmup_seconds": 60},
    ],
    ids=["closed", "open", "requests", "in the warm-up"],
)
def test_a_level_that_nothing_connects_in_ends_early(tmp_path: Path, answering, phase: dict[str, Any]) -> None:
    process = start(tmp_path, answering.url, {"window_seconds": 60, **phase}, {"unreachable_seconds": 0.5})
    read_event(process, "progress")
    answering.close()
    early = read_event(process, "ended_early")
    end = read_event(process, "phase_end")
    assert early["reason"] == end["ended_early"] == "no request has connected for 0.5 s (Connection refused)"
    assert early["phase"] == 0
    assert end["in_flight"] == end["unsent"] == 0
    assert read_event(process, "done")["phases"] == 1
    assert finish(process)[0] == 0


@pytest.fixture
def few_descriptors() -> Iterator[Callable[[], None]]:
    """Leaves this process no descriptor that is not in use, when called."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave_none() -> None:
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))

    yield leave_none
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_connection_that_this_machine_has_no_room_for(answering, asker, few_descriptors) -> None:
    ask = asker(answering.url)
    few_descriptors()
    got = ask()
    assert (got.outcome, got.outcome_detail) == (
        Outcome.CONNECT_ERROR,
        "this machine's own limit: Too many open files",
    )
    assert ask.meter.facts(None, None).client_refusals == 1


def test_running_out_of_descriptors_makes_a_level_invalid(tmp_path: Path, answering) -> None:
    # what is open already, from whoever started it, is room that the plan was told it has.
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(80)]
    limit = max(taken) + 65
    try:
        process = start(
            tmp_path,
            answering.url,
            {"level": limit - 64},
            pass_fds=taken,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        )
    finally:
        for descriptor in taken:
            os.close(descriptor)
    end = read_event(process, "phase_end")
    assert finish(process)[0] == 0
    assert end["client"]["client_refusals"] > 0
    assert any("descriptors" in reason for reason in end["validity"]["reasons"])


def test_more_users_than_may_have_a_connection(tmp_path: Path, answering) -> None:
    process = start(
        tmp_path,
        answering.url,
        {"level": 100},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 160)),
    )
    assert finish(process) == (
        3,
        [],
        "loadgen: 100 users want 164 open files, of which this process may have 160; raise the limit "
        "(ulimit -Hn 164), lower the level, or use more processes\n",
    )
    assert answering.requests == []


def test_the_soft_limit_is_raised_and_a_share_needs_less(tmp_path: Path, answering, asker) -> None:
    process = start(
        tmp_path,
        answering.url,
        {"level": 100, "window_seconds": 0.2},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (50, 4096)),
    )
    assert finish(process)[0] == 0
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    plan = asker(answering.url).plan
    plan = plan.model_copy(update={"phases": (plan.phases[0].model_copy(update={"level": most}),)})
    with pytest.raises(PlanError, match="more processes"):
        check_limit(plan, Share())
    check_limit(plan, Share(0, 2))


def test_a_full_disk_ends_the_run(tmp_path: Path, answering) -> None:
    process = start(
        tmp_path,
        answering.url,
        {"window_seconds": 60},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    status, _, err = finish(process)
    assert (status, err) == (
        1,
        "loadgen: the journal cannot be written (File too large); make room on its disk\n",
    )
    transcripts = list(read_transcripts(tmp_path / "out" / JOURNAL_NAME))
    assert {t.outcome for t in transcripts} == {Outcome.COMPLETE}


def test_a_clerk_that_is_gone_before_the_run_begins(tmp_path: Path, serve) -> None:
    processes: list[subprocess.Popen[str]] = []
    is_started = threading.Event()

    def play(connection: socket.socket, request: bytes) -> bool:
        assert is_started.wait(30)
        process = processes[0].pid
        for clerk in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            os.kill(int(clerk), signal.SIGKILL)
        connection.sendall(MODELS)
        return True

    server = serve(play)
    processes.append(start(tmp_path, server.url, {}))
    is_started.set()
    assert finish(processes[0]) == (3, [], "loadgen: the helper process ended early\n")
    assert len(server.requests) == 1


class LostHelper:
    """A helper that fails once it has been given something."""

    def __init__(self, *, is_lost: bool) -> None:
        self._is_lost = is_lost
        self.sent: list[Any] = []

    def send(self, message: Any, *, is_urgent: bool = False) -> None:
        self.sent.append(message)

    def check(self) -> None:
        if self._is_lost and self.sent:
            raise LoadgenError("lost")


@pytest.mark.parametrize("is_lost", [True, False], ids=["a clerk that fails", "a run that is stopped"])
def test_nobody_waits_for_requests_in_vain(is_lost: bool) -> None:
    helper: Any = LostHelper(is_lost=is_lost)
    feeder = Feeder(helper, Share(), lambda: None)
    phase = Phase(index=0, arm="candidate", level=2)
    looks = iter([False, False, True])
    with gevent.Timeout(10):
        if is_lost:
            with pytest.raises(LoadgenError, match="lost"):
                feeder.begin(phase, 0, {Label.MEASURED: None}, {}, lambda: False)
        else:
            feeder.begin(phase, 0, {Label.MEASURED: None}, {}, lambda: next(looks))
    assert len(helper.sent) == 2


def test_a_metrics_port_that_is_taken(tmp_path: Path, answering) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, events, err = finish(start(tmp_path, answering.url, {}, {"metrics_port": port}))
    assert (status, events) == (3, [])
    assert err == f"loadgen: metrics port {port} cannot be listened on (Address already in use); choose another\n"
    assert all(request.startswith(b"GET ") for request in answering.requests)
    assert list((tmp_path / "out").iterdir()) == []


def test_metrics_while_it_runs(tmp_path: Path, answering, free_port: int) -> None:
    process = start(tmp_path, answering.url, {"window_seconds": 60}, {"metrics_port": free_port})
    read_event(process, "progress")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{free_port}/metrics", timeout=10) as page:
        text = page.read().decode()
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert 'outcome="complete"' in text
    for gauge in ("in_flight", "users", "loop_lag_seconds"):
        assert f"\npdwatch_loadgen_{gauge} " in text


def test_an_echoed_token_is_not_recorded(tmp_path: Path, serve) -> None:
    token = "sk-very/secret+token="

    def play(connection: socket.socket, request: bytes) -> bool:
        if request.startswith(b"GET "):
            connection.sendall(MODELS)
            return True
        body = b"you sent " + request + token.encode()
        head = f"HTTP/1.1 401 Unauthorized\r\nX-Echo: {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return True

    server = serve(play)
    plan = {"bearer_token_environment": "DOOR"}
    phase = {"requests": 8, "level": 2}
    process = start(tmp_path, server.url, phase, plan, env={**os.environ, "DOOR": token})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    transcripts = list(read_transcripts(tmp_path / "out" / JOURNAL_NAME))
    assert len(transcripts) == 8
    assert token not in out + err + repr(transcripts)
    for t in transcripts:
        assert t.outcome is Outcome.HTTP_ERROR
        assert b"Authorization: Bearer " + b"*" * len(token) in t.body
        assert t.response_headers["x-echo"] == "[redacted]"
