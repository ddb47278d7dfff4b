"""Several drivers as one, as processes, against a server that plays streams."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import JOURNAL_NAME, Label, Transcript, read_transcripts
from pdwatch.loadgen.row import ROWS_NAME, RequestRow, read_rows
from pdwatch.loadgen.summary import PhaseSummary

LEAD = (sys.executable, "-m", "pdwatch.loadgen.scale.lead")
AGENT = (sys.executable, "-m", "pdwatch.loadgen.scale.agent")
# behaviour is looked at here, on machines of any load.
LIMITS = {
    "most_loop_lag_p99_seconds": 10,
    "most_loop_lag_seconds": 60,
    "most_cpu_share": 1,
    "least_in_flight_share": 0,
    "least_rate_share": 0,
    "most_schedule_lag_p99_seconds": 10,
    "most_send_backlog_seconds": 60,
}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def answering(serve, stream, chunked):
    """A server that answers each chat completion in 20 ms, in three parts."""
    pause = threading.Event()

    def play(connection: socket.socket, request: bytes) -> bool:
        if request.startswith(b"GET "):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return True
        data = chunked(stream("tool_call"), 300)
        for start in (0, 500, 1000):
            connection.sendall(data[start : start + 500 if start < 1000 else len(data)])
            # time passes as on a real server; no test waits on it
            pause.wait(0.007)
        return True

    return serve(play)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, which are gone after the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*command: Any, **options: Any) -> subprocess.Popen[str]:
        words = list(map(str, command))
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options))
        return processes[-1]

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def write_plan(directory: Path, url: str, phases: list[dict[str, Any]], **changes: Any) -> Path:
    plan = {
        "seed": 11,
        "targets": {"candidate": url},
        "model": "tiny-toolcaller",
        "cancel_rate": 0,
        "limits": LIMITS,
        "phases": [
            {"index": index, "arm": "candidate", "warmup_seconds": 0.2, "window_seconds": 0.6, **phase}
            for index, phase in enumerate(phases)
        ],
        **changes,
    }
    path = directory / "plan.json"
    path.write_text(json.dumps(plan))
    return path


def finish(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=100)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def wait_for(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The next event that is wanted."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if wanted(event):
            return event
    raise AssertionError(f"it ended before: {process.stderr.read() if process.stderr else ''}")


def recorded(out: Path) -> tuple[list[RequestRow], list[Transcript]]:
    return list(read_rows(out / ROWS_NAME)), list(read_transcripts(out / JOURNAL_NAME))


def of_phase(events: list[dict[str, Any]], phase: int) -> dict[str, Any]:
    return next(event for event in events if event["event"] == "phase_end" and event["phase"] == phase)


def test_processes_share_each_kind_of_load(tmp_path: Path, answering, start: Start) -> None:
    phases: list[dict[str, Any]] = [
        {"level": 5, "window_seconds": 1.5},
        {"level": 1, "requests": 7},
        {"level": 5, "load": {"kind": "waves", "sizes": [1, 2, 5], "repeats": 2}, "warmup_seconds": 0},
        {"level": 16, "load": {"kind": "open", "rate_per_second": 40}},
    ]
    plan = write_plan(tmp_path, answering.url, phases, slo={"ttft_seconds": 60})
    status, events, err = finish(start(*LEAD, "--plan", plan, "--out", tmp_path / "out", "--processes", 2))
    assert (status, err) == (0, "")
    assert [event["event"] for event in events if event["event"] not in ("progress", "waiting")] == [
        *("phase_start", "phase_end") * 4,
        "done",
    ]
    rows, transcripts = recorded(tmp_path / "out")
    assert {row.outcome.value for row in rows} == {"complete"}
    assert sorted(row.request_id for row in rows) == sorted(one.request_id for one in transcripts)
    assert len({row.request_id for row in rows}) == len(rows)
    # users belong to one driver each, and so do the sequences of their requests
    assert all(row.number % 2 == row.user % 2 for row in rows if row.phase != 1)
    for phase in range(4):
        check_phase(of_phase(events, phase), [row for row in rows if row.phase == phase])
    assert Counter(row.user for row in rows if row.phase == 0).keys() == {0, 1, 2, 3, 4}
    assert len([row for row in rows if row.phase == 1 and row.label is Label.MEASURED]) == 7
    check_waves([row for row in rows if row.phase == 2], [1, 2, 5] * 2)
    progress = next(event for event in events if event["event"] == "progress")
    assert progress["completed"] > 0 and progress["live"]["ttft_p50_seconds"] > 0
    assert "workers" not in os.listdir(tmp_path / "out")
    told = json.loads((tmp_path / "out" / "workers.json").read_text())
    assert sum(worker["transcripts"] for worker in told["workers"]) == len(transcripts)
    assert [worker["is_whole"] for worker in told["workers"]] == [True, True]


def check_phase(end: dict[str, Any], rows: list[RequestRow]) -> None:
    assert end["sent"] == {label.value: sum(row.label is label for row in rows) for label in Label}
    assert (end["ended"], end["in_flight"], end["errors"]) == (len(rows), 0, {})
    client = end["client"]
    # which of the drivers could keep up is another test's; that the facts are those of all of them is this one's.
    assert client["achieved_rate_per_second"] > 0
    assert (client["client_refusals"], client["back_off_seconds"]) == (0, 0)
    if end["load"] == "open":
        assert client["bound_in_flight"] == end["level"] >= client["most_in_flight"] > 0
        assert client["intended_rate_per_second"] > 0
    if client["intended_in_flight"] is not None:
        assert client["achieved_in_flight"] <= client["intended_in_flight"] == end["level"]
    summary = PhaseSummary.model_validate(end["summary"])
    starts, ends = end["window_starts_seconds"], end["window_ends_seconds"]
    assert starts <= summary.window.starts_seconds < summary.window.ends_seconds <= ends
    measured = [row for row in rows if row.label is Label.MEASURED]
    assert 0 < summary.complete <= len(measured)
    # every gap of every driver is in it: one less than there are tokens
    tokens = [row.output_tokens or 0 for row in measured]
    assert summary.latencies["inter_token_seconds"].count % (tokens[0] - 1) == 0
    assert summary.goodput is not None and summary.goodput.share == 1
    assert {name.split()[0] for name in end["client"]["processes"]} == {"driver", "clerk", "agent", "leader"}


def test_limits_are_held_against_each_driver(tmp_path: Path, answering, start: Start) -> None:
    limits = {**LIMITS, "most_cpu_share": 0}
    plan = write_plan(tmp_path, answering.url, [{"level": 4}], limits=limits)
    status, events, err = finish(start(*LEAD, "--plan", plan, "--out", tmp_path / "out", "--processes", 2))
    assert (status, err) == (0, "")
    validity = of_phase(events, 0)["validity"]
    assert (validity["is_valid"], validity["is_bound_reached"]) == (False, False)
    for worker in (0, 1):
        assert any(reason.startswith(f"worker {worker}: process driver used") for reason in validity["reasons"])


def test_what_was_never_sent_is_told_by_all_drivers(tmp_path: Path, serve, start: Start) -> None:
    # two users and a server that is never done: nothing but the first two requests is ever sent.
    def play(connection: socket.socket, request: bytes) -> bool:
        if request.startswith(b"GET "):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return True
        connection.recv(1)
        return False

    phase = {"level": 2, "load": {"kind": "open", "rate_per_second": 40, "arrivals": "constant"}, "warmup_seconds": 0}
    limits = {**LIMITS, "least_rate_share": 0.95}
    plan = write_plan(
        tmp_path,
        serve(play).url,
        [phase],
        limits=limits,
        slo={"e2e_seconds": 1},
        request_timeout_seconds=0.5,
        connect_timeout_seconds=0.2,
    )
    status, events, err = finish(start(*LEAD, "--plan", plan, "--out", tmp_path / "out", "--processes", 2))
    assert (status, err) == (0, "")
    end = of_phase(events, 0)
    summary = PhaseSummary.model_validate(end["summary"])
    assert summary.goodput is not None and summary.unsent > 0
    # all that fell due in 0.6 s at 40/s, whatever became of it; the edges of the two windows are a little apart.
    assert summary.sent + summary.unsent == summary.goodput.eligible
    assert 22 <= summary.goodput.eligible <= 24
    assert (summary.goodput.good, end["validity"]["is_bound_reached"]) == (0, True)


def test_a_level_that_nothing_connects_in_ends_early(tmp_path: Path, answering, start: Start) -> None:
    phases = [{"level": 2, "window_seconds": 60}]
    plan = write_plan(tmp_path, answering.url, phases, unreachable_seconds=0.5)
    process = start(*LEAD, "--plan", plan, "--out", tmp_path / "out", "--processes", 2)
    wait_for(process, lambda event: event["event"] == "progress")
    answering.close()
    early = wait_for(process, lambda event: event["event"] == "ended_early")
    # told once, whichever driver noticed first
    end = wait_for(process, lambda event: event["event"] in ("ended_early", "phase_end"))
    assert (end["event"], end["ended_early"]) == ("phase_end", early["reason"])
    assert early["reason"].startswith("no request has connected for 0.5 s")
    assert finish(process)[0] == 0


def check_waves(rows: list[RequestRow], sizes: list[int]) -> None:
    """The waves went out one after another, each of its size and none before the last one's end."""
    left = sorted(rows, key=lambda row: row.sent_seconds)
    ended_seconds = 0.0
    for size in sizes:
        wave, left = left[:size], left[size:]
        assert min(row.sent_seconds for row in wave) >= ended_seconds
        ended_seconds = max(row.ended_seconds for row in wave)
        assert max(row.sent_seconds for row in wave) < min(row.ended_seconds for row in wave)
    assert not left


def test_a_search_looks_at_all_drivers(tmp_path: Path, answering, start: Start) -> None:
    search = {"kind": "users", "start": 1, "most": 2, "target_share": 0.5, "confidence": 0.8}
    plan = write_plan(tmp_path, answering.url, [{"level": 2}], slo={"ttft_seconds": 60}, search=search)
    status, events, err = finish(start(*LEAD, "--plan", plan, "--out", tmp_path / "out", "--processes", 2))
    assert (status, err) == (0, "")
    assert events[-1]["capacity"]
    decisions = [event["decision"] for event in events if event["event"] == "phase_end"]
    assert "meets" in decisions and set(decisions) <= {"meets", "cannot_tell"}
    assert len(decisions) == events[-1]["phases"] > 1


def agents(start: Start, tmp_path: Path, port: int, *first: str, **options: Any) -> list[subprocess.Popen[str]]:
    command = (*AGENT, "--master-host", "127.0.0.1", "--master-port", port, "--out")
    return [
        start(*(first if number == 0 else ()), *command, tmp_path / f"worker-{number}", **options)
        for number in range(2)
    ]


def lead_two(start: Start, tmp_path: Path, plan: Path, port: int) -> subprocess.Popen[str]:
    where = ("--expect-workers", 2, "--bind", f"127.0.0.1:{port}")
    return start(*LEAD, "--plan", plan, "--out", tmp_path / "out", *where)


def test_a_master_and_two_workers(tmp_path: Path, answering, start: Start, free_port: int) -> None:
    plan = write_plan(tmp_path, answering.url, [{"level": 4}], bearer_token_environment="DOOR")
    # the token is each worker's own: the leader has none
    token = ("--bearer-token-environment", "KEY")
    workers = [
        start(
            *(*AGENT, "--master-host", "127.0.0.1", "--master-port", free_port, *token),
            *("--out", tmp_path / f"worker-{number}"),
            env={**os.environ, "KEY": "sesame"},
        )
        for number in range(2)
    ]
    status, events, err = finish(lead_two(start, tmp_path, plan, free_port))
    assert (status, err) == (0, "")
    assert [finish(worker)[0] for worker in workers] == [0, 0]
    rows, transcripts = recorded(tmp_path / "out")
    assert Counter(row.user for row in rows).keys() == {0, 1, 2, 3}
    assert len(rows) == len(transcripts) == of_phase(events, 0)["ended"]
    for number in range(2):
        folder = tmp_path / f"worker-{number}"
        own, kept = recorded(folder)
        # what went over the wire is what each worker has on its disk
        assert {row.request_id for row in own} <= {row.request_id for row in rows}
        assert len(own) == len(kept)
    assert sum(b"Authorization: Bearer sesame\r\n" in request for request in answering.requests) >= len(rows)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"sesame" in path.read_bytes() for path in files)


def test_a_worker_without_the_token_is_told(tmp_path: Path, answering, start: Start, free_port: int) -> None:
    plan = write_plan(tmp_path, answering.url, [{"level": 4}], bearer_token_environment="DOOR")
    workers = agents(start, tmp_path, free_port)
    status, events, err = finish(lead_two(start, tmp_path, plan, free_port))
    assert status == 3
    assert "name the environment variable that holds it on this worker's own command line" in err
    assert not [event for event in events if event["event"] == "phase_start"]
    for worker in workers:
        finish(worker)


def can_shift_clocks() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and not subprocess.run([unshare, "-T", "true"], capture_output=True).returncode


@pytest.mark.skipif(not can_shift_clocks(), reason="needs leave to make a time namespace (unshare -T)")
def test_a_worker_whose_clock_is_an_hour_ahead(tmp_path: Path, answering, start: Start, free_port: int) -> None:
    load = {"kind": "waves", "sizes": [4], "repeats": 3}
    phases: list[dict[str, Any]] = [
        {"level": 4, "window_seconds": 1.0},
        {"level": 4, "load": load, "warmup_seconds": 0},
    ]
    plan = write_plan(tmp_path, answering.url, phases)
    workers = agents(start, tmp_path, free_port, "unshare", "-T", "--monotonic", "3600")
    status, events, err = finish(lead_two(start, tmp_path, plan, free_port))
    assert (status, err) == (0, "")
    for worker in workers:
        finish(worker)
    told = json.loads((tmp_path / "out" / "workers.json").read_text())
    rows, _ = recorded(tmp_path / "out")
    shifted = []
    for clocks in told["clocks"]:
        by_worker = {one["worker"]: one["clock_offset_seconds"] for one in clocks["workers"]}
        assert sorted(by_worker.values()) == [0, pytest.approx(3600, abs=0.1)]
        of_this = [row for row in rows if row.phase == clocks["phase"]]
        # a user's worker is its number modulo the workers
        shifted.append([row.sent_seconds - by_worker[row.user % 2] for row in of_this])
    assert max(shifted[0]) - min(shifted[0]) < 60
    window = of_phase(events, 0)
    assert window["window_ends_seconds"] - window["window_starts_seconds"] == pytest.approx(1.0, abs=0.2)
    # released together, whatever their clocks say
    times = sorted(shifted[1])
    assert all(max(wave) - min(wave) < 0.25 for wave in (times[:4], times[4:8], times[8:]))


def long_run(tmp_path: Path, url: str, start: Start, *arguments: Any) -> subprocess.Popen[str]:
    """A run on two processes whose only phase would last for a minute, with requests of both behind it."""
    plan = write_plan(tmp_path, url, [{"level": 4, "window_seconds": 60}])
    process = start(*LEAD, "--plan", plan, "--out", tmp_path / "out", "--processes", 2, *arguments)
    wait_for(process, lambda event: event["event"] == "progress" and event["completed"] > 20)
    return process


def descendants(process: int) -> dict[int, str]:
    """The command lines of all processes below one."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found |= descendants(child)
    return found


@pytest.mark.parametrize(
    ("victim", "told"),
    [("pdwatch.loadgen.drive", "its driver was killed by SIGKILL"), ("scale.agent", "it died, or cannot be reached")],
)
def test_a_worker_that_is_killed(tmp_path: Path, answering, start: Start, victim: str, told: str) -> None:
    process = long_run(tmp_path, answering.url, start)
    found = descendants(process.pid)
    # a driver's clerk has the driver's command line, and is its child
    pid = min(pid for pid, command in found.items() if victim in command and str(tmp_path / "out/workers/1") in command)
    os.kill(pid, signal.SIGKILL)
    status, events, err = finish(process)
    assert status == 1
    assert err.startswith("loadgen: worker 1 (") and told in err
    end = of_phase(events, 0)
    assert not end["validity"]["is_valid"]
    assert any("worker 1 (" in reason and told in reason for reason in end["validity"]["reasons"])
    assert events[-1] == {"event": "worker_lost", "worker": 1, "reason": told}
    rows, transcripts = recorded(tmp_path / "out")
    kept = [row for worker in (0, 1) for row in read_rows(tmp_path / "out" / "workers" / str(worker) / ROWS_NAME)]
    assert len(rows) == len(transcripts) == len(kept) == end["ended"]
    assert {row.user % 2 for row in rows} == {0, 1}
    assert_gone(found)


def test_a_leader_that_is_killed_leaves_nobody_behind(tmp_path: Path, answering, start: Start) -> None:
    process = long_run(tmp_path, answering.url, start)
    found = descendants(process.pid)
    assert len(found) == 6
    process.kill()
    process.communicate(timeout=60)
    assert_gone(found)
    rows, transcripts = recorded(tmp_path / "out")
    assert abs(len(rows) - len(transcripts)) <= 16 and len(rows) > 20


def assert_gone(processes: dict[int, str]) -> None:
    """All of these end soon."""
    import select

    for pid in processes:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # a pidfd turns readable when its process has ended
            assert select.select([descriptor], [], [], 30)[0], f"{processes[pid]} is still there"
        finally:
            os.close(descriptor)


def test_a_signal_ends_all(tmp_path: Path, answering, start: Start) -> None:
    process = long_run(tmp_path, answering.url, start)
    found = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    status, _, err = finish(process)
    assert (status, err) == (128 + signal.SIGTERM, "loadgen: stopped by SIGTERM\n")
    assert_gone(found)
    rows, transcripts = recorded(tmp_path / "out")
    outcomes = Counter(row.outcome.value for row in rows)
    assert outcomes.keys() <= {"complete", "cancelled"} and outcomes["cancelled"] <= 4
    assert len(rows) == len(transcripts)


def test_nobody_answers(tmp_path: Path, free_port: int, start: Start) -> None:
    url = f"http://127.0.0.1:{free_port}"
    plan = write_plan(tmp_path, url, [{"level": 4}])
    status, _, err = finish(start(*LEAD, "--plan", plan, "--out", tmp_path / "out", "--processes", 2))
    assert (status, err) == (
        3,
        f"loadgen: candidate target {url} does not answer (Connection refused); start the server there, or correct "
        "the URL\n",
    )


def test_a_port_that_is_taken(tmp_path: Path, answering, start: Start) -> None:
    plan = write_plan(tmp_path, answering.url, [{"level": 4}])
    port = answering.url.rpartition(":")[2]
    where = ("--expect-workers", 1, "--bind", f"127.0.0.1:{port}")
    status, _, err = finish(start(*LEAD, "--plan", plan, "--out", tmp_path / "out", *where))
    assert (status, err.count("\n")) == (3, 1)
    assert f"127.0.0.1:{port} cannot be listened on" in err


def test_a_worker_of_no_host(tmp_path: Path, start: Start) -> None:
    status, _, err = finish(start(*AGENT, "--master-host", "no.such.host.invalid", "--out", tmp_path / "out"))
    assert status == 3
    assert err.splitlines()[-1].startswith("loadgen: master 'no.such.host.invalid' is no host")
