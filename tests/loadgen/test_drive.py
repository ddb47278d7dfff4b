"""The load generator as a process, against a server that plays streams."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import JOURNAL_NAME, Label, Outcome, Transcript, read_transcripts


def write_plan(directory: Path, url: str, **changes: Any) -> Path:
    phases = changes.pop("phases", [("baseline", 4), ("candidate", 4)])
    plan = {
        "seed": 11,
        "targets": {"candidate": url, "baseline": url},
        "model": "tiny-toolcaller",
        "phases": [
            {"index": index, "arm": arm, "level": level, "warmup_seconds": 0.2, "window_seconds": 0.6}
            for index, (arm, level) in enumerate(phases)
        ],
        **changes,
    }
    path = directory / "plan.json"
    path.write_text(json.dumps(plan))
    return path


def drive(plan: Path, out: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pdwatch.loadgen.drive", "--plan", str(plan), "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finish(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


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


def test_phases(tmp_path: Path, answering) -> None:
    plan = write_plan(tmp_path, answering.url, phases=[("baseline", 4), ("candidate", 4), ("candidate", 1)])
    status, events, err = finish(drive(plan, tmp_path / "out"))
    assert (status, err) == (0, "")
    assert [event["event"] for event in events if event["event"] != "progress"] == [
        *("phase_start", "phase_end") * 3,
        "done",
    ]
    transcripts = list(read_transcripts(tmp_path / "out" / JOURNAL_NAME))
    assert {t.outcome for t in transcripts} == {Outcome.COMPLETE, Outcome.CANCELLED}
    for phase, end in enumerate(event for event in events if event["event"] == "phase_end"):
        check_phase(end, [t for t in transcripts if t.phase == phase])
    nonces = [t.task.nonce for t in transcripts if t.task is not None]
    assert len(set(nonces)) == len(transcripts)
    # both arms were asked for the same tasks, and not by the same requests
    first, second = ({t.number for t in transcripts if t.phase == phase and is_measured(t)} for phase in (0, 1))
    assert len(first & second) == min(len(first), len(second))
    assert len({t.request_id for t in transcripts}) == len(transcripts)
    assert [len({t.user for t in transcripts if t.phase == phase}) for phase in range(3)] == [4, 4, 1]
    for before, after in ((0, 1), (1, 2)):
        assert max(t.ended_seconds for t in transcripts if t.phase == before) < min(
            t.sent_seconds for t in transcripts if t.phase == after
        )


def is_measured(transcript: Transcript) -> bool:
    return transcript.label is Label.MEASURED


def check_phase(end: dict[str, Any], transcripts: list[Transcript]) -> None:
    assert end["sent"] == {label.value: sum(t.label is label for t in transcripts) for label in Label}
    assert end["in_flight"] == 0
    assert end["errors"] == {}
    assert end["ended"] == len(transcripts)
    assert end["measured"] == end["sent"]["measured"] > 0
    starts, ends = end["window_starts_seconds"], end["window_ends_seconds"]
    # a label is chosen just before the connection is looked at and the request is sent
    slack_seconds = 0.2
    for t in transcripts:
        low, high = {
            Label.WARMUP: (0.0, starts),
            Label.MEASURED: (starts, ends),
            Label.COOLDOWN: (ends, float("inf")),
        }[t.label]
        assert low <= t.sent_seconds < high + slack_seconds
    assert max(overlap(transcripts)) <= end["level"]
    last_sent = max(t.sent_seconds for t in transcripts)
    assert last_sent <= max(t.ended_seconds for t in transcripts if is_measured(t)) + slack_seconds


def overlap(transcripts: list[Transcript]) -> list[int]:
    """Requests in flight at each sending."""
    return [
        sum(other.sent_seconds <= t.sent_seconds < other.ended_seconds for other in transcripts) for t in transcripts
    ]


def test_outcomes_are_counted(tmp_path: Path, serve, stream, chunked) -> None:
    names = ["tool_call", "error_object", "no_done", "only_done"]
    answered: Counter[bool] = Counter()

    def play(connection: socket.socket, request: bytes) -> bool:
        answered[True] += 1
        connection.sendall(chunked(stream(names[answered[True] % len(names)])))
        return True

    plan = write_plan(tmp_path, serve(play).url, phases=[("candidate", 1)], cancel_rate=0)
    status, events, _ = finish(drive(plan, tmp_path / "out"))
    counts = Counter(t.outcome.value for t in read_transcripts(tmp_path / "out" / JOURNAL_NAME))
    assert status == 0
    assert counts.keys() == {"complete", "in_band_error", "truncated", "empty"}
    assert events[-2]["completed"] == counts.pop("complete")
    assert events[-2]["errors"] == counts


def test_a_server_that_dies_is_recorded(tmp_path: Path, answering) -> None:
    plan = write_plan(tmp_path, answering.url, phases=[("candidate", 4)], cancel_rate=0)
    process = drive(plan, tmp_path / "out")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "phase_start"
    answering.close()
    assert finish(process)[0] == 0
    outcomes = {t.outcome for t in read_transcripts(tmp_path / "out" / JOURNAL_NAME)}
    assert Outcome.CONNECT_ERROR in outcomes
    assert outcomes <= {Outcome.COMPLETE, Outcome.RESET, Outcome.CONNECT_ERROR}


def start_long(tmp_path: Path, url: str) -> subprocess.Popen[str]:
    """A run whose only phase would last for a minute, begun and with requests behind it."""
    path = write_plan(tmp_path, url, phases=[("candidate", 2)], cancel_rate=0)
    plan = json.loads(path.read_text())
    plan["phases"][0]["window_seconds"] = 60
    path.write_text(json.dumps(plan))
    process = drive(path, tmp_path / "out")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "phase_start"
    assert json.loads(process.stdout.readline())["completed"] > 0
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(tmp_path: Path, answering, number: signal.Signals) -> None:
    process = start_long(tmp_path, answering.url)
    process.send_signal(number)
    status, _, err = finish(process)
    assert (status, err) == (128 + number, f"loadgen: stopped by {number.name}\n")
    outcomes = Counter(t.outcome for t in read_transcripts(tmp_path / "out" / JOURNAL_NAME))
    # the two users' requests in flight were given up and are in the journal
    assert outcomes[Outcome.CANCELLED] <= 2
    assert outcomes.total() - outcomes[Outcome.CANCELLED] == outcomes[Outcome.COMPLETE] > 0


def test_killed_it_leaves_a_journal_and_no_process(tmp_path: Path, answering) -> None:
    process = start_long(tmp_path, answering.url)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) == 1
    pidfds = [os.pidfd_open(pid) for pid in children]
    process.kill()
    process.communicate(timeout=60)
    for pidfd in pidfds:
        # a pidfd turns readable when its process has ended
        assert poll_readable(pidfd)
        os.close(pidfd)
    assert sum(1 for _ in read_transcripts(tmp_path / "out" / JOURNAL_NAME)) > 0


def poll_readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(20_000))


def test_nobody_reads_the_progress(tmp_path: Path, answering) -> None:
    process = start_long(tmp_path, answering.url)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), err) == (1, "loadgen: nobody reads the progress any more, so the run was ended\n")


def test_unreachable_target(tmp_path: Path, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    status, events, err = finish(drive(write_plan(tmp_path, url), tmp_path / "out"))
    assert (status, events) == (3, [])
    assert err == (
        f"loadgen: baseline target {url} does not answer (Connection refused); start the server there, "
        "or correct the URL\n"
    )
    assert not (tmp_path / "out").exists()


def test_refused_token(tmp_path: Path, serve) -> None:
    def play(connection: socket.socket, request: bytes) -> bool:
        status = "200 OK" if b"Authorization: Bearer sesame\r\n" in request else "401 Unauthorized"
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        return True

    plan = write_plan(tmp_path, serve(play).url, phases=[("candidate", 1)])
    status, _, err = finish(drive(plan, tmp_path / "out"))
    assert status == 3
    assert "refuses us with HTTP 401; name the environment variable" in err
    named = json.loads(plan.read_text()) | {"bearer_token_environment": "DOOR"}
    plan.write_text(json.dumps(named))
    status, _, err = finish(drive(plan, tmp_path / "out"))
    assert (status, "environment variable DOOR holds no bearer token" in err) == (3, True)
    status, _, err = finish(drive(plan, tmp_path / "out", env={**os.environ, "DOOR": "sesame"}))
    assert (status, err) == (0, "")
    files = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    texts = " ".join(map(repr, read_transcripts(tmp_path / "out" / JOURNAL_NAME)))
    assert b"sesame" not in files
    assert "sesame" not in texts


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"phases": [("candidate", 0)]}, "phases[0].level is 0: Input should be greater than or equal to 1"),
        ({"sed": 1}, "sed is 1: Extra inputs are not permitted"),
    ],
)
def test_bad_plan(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    status, events, err = finish(drive(write_plan(tmp_path, "http://127.0.0.1:1", **changes), tmp_path / "out"))
    assert (status, events) == (3, [])
    assert complaint in err
    assert err.count("\n") == 1


def test_a_journal_is_not_written_over(tmp_path: Path, answering) -> None:
    (tmp_path / JOURNAL_NAME).write_bytes(b"dear")
    status, events, err = finish(drive(write_plan(tmp_path, answering.url), tmp_path))
    assert (status, events) == (3, [])
    assert err == f"loadgen: {tmp_path / JOURNAL_NAME} is there already; give an empty folder\n"
    assert (tmp_path / JOURNAL_NAME).read_bytes() == b"dear"


def test_the_face_needs_neither_gevent_nor_locust() -> None:
    check = "import sys, pdwatch.loadgen; sys.exit(sum(m.split('.')[0] in ('gevent', 'locust') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
