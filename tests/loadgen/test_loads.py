"""Each kind of load through the driver's process: when requests are sent, and when the phase ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import JOURNAL_NAME, Label, Outcome, Transcript, read_transcripts

MODELS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def answering(serve, stream, chunked):
    """A server that answers at once."""

    def play(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(MODELS if request.startswith(b"GET ") else chunked(stream("tool_call")))
        return True

    return serve(play)


@pytest.fixture
def slow(serve, stream, chunked):
    """A server that answers after 0.1 s."""
    pause = threading.Event()

    def play(connection: socket.socket, request: bytes) -> bool:
        if not request.startswith(b"GET "):
            # time passes as on a real server; no test waits on it
            pause.wait(0.1)
        connection.sendall(MODELS if request.startswith(b"GET ") else chunked(stream("tool_call")))
        return True

    return serve(play)


def run(
    directory: Path, url: str, phase: dict[str, Any], *options: str, **changes: Any
) -> tuple[list[dict[str, Any]], list[Transcript]]:
    """The events and transcripts of a run of one phase."""
    plan = {
        "seed": 3,
        "targets": {"candidate": url},
        "model": "m",
        "cancel_rate": 0,
        "phases": [{"index": 0, "arm": "candidate", "level": 4, "warmup_seconds": 0, "window_seconds": 0.5, **phase}],
        **changes,
    }
    (directory / "plan.json").write_text(json.dumps(plan))
    out = directory / f"out{len(list(directory.iterdir()))}"
    command = [sys.executable, "-m", "pdwatch.loadgen.drive", "--plan", str(directory / "plan.json"), "--out", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()], list(read_transcripts(out / JOURNAL_NAME))


def the_end(events: list[dict[str, Any]]) -> dict[str, Any]:
    (end,) = (event for event in events if event["event"] == "phase_end")
    return end


def sendings(transcripts: list[Transcript]) -> list[float]:
    return sorted(t.sent_seconds for t in transcripts)


def test_so_many_requests(tmp_path: Path, answering) -> None:
    events, transcripts = run(tmp_path, answering.url, {"requests": 30, "warmup_seconds": 0.1})
    end = the_end(events)
    assert Counter(t.label for t in transcripts)[Label.MEASURED] == end["sent"]["measured"] == 30
    assert end["sent"]["cooldown"] == 0
    # the measured part ends with its last request.
    assert end["window_ends_seconds"] == max(t.ended_seconds for t in transcripts)
    assert events[0]["window_ends_seconds"] is None
    assert end["completed"] == len(transcripts)


def test_an_open_loop_keeps_to_its_schedule(tmp_path: Path, answering) -> None:
    load = {"kind": "open", "rate_per_second": 100, "arrivals": "constant"}
    events, transcripts = run(tmp_path, answering.url, {"load": load, "level": 50, "window_seconds": 1})
    times = sorted(t.scheduled_seconds for t in transcripts if t.scheduled_seconds is not None)
    assert len(times) == len(transcripts)
    assert all(b - a == pytest.approx(0.01) for a, b in pairwise(times))
    assert all(t.sent_seconds >= t.scheduled_seconds for t in transcripts if t.scheduled_seconds is not None)
    assert the_end(events)["client"]["intended_rate_per_second"] == pytest.approx(100, rel=0.1)
    assert the_end(events)["unsent"] == 0


def test_an_overloaded_open_loop_shows_its_delay(tmp_path: Path, serve, stream, chunked) -> None:
    # one user and a server that is never done: nothing but the first request is ever sent.
    def play(connection: socket.socket, request: bytes) -> bool:
        if request.startswith(b"GET "):
            connection.sendall(MODELS)
            return True
        connection.recv(1)
        return False

    load = {"kind": "open", "rate_per_second": 50, "arrivals": "constant"}
    phase = {"load": load, "level": 1, "window_seconds": 0.3}
    events, transcripts = run(
        tmp_path, serve(play).url, phase, request_timeout_seconds=0.5, connect_timeout_seconds=0.2
    )
    end = the_end(events)
    assert [t.outcome for t in transcripts] == [Outcome.TIMEOUT] * len(transcripts)
    assert end["unsent"] > 0
    assert end["validity"]["is_valid"] is False
    assert (end["client"]["bound_in_flight"], end["client"]["most_in_flight"]) == (1, 1)


def test_a_ramp_and_a_staggered_start(tmp_path: Path, serve, stream, chunked) -> None:
    # the server holds each first request until all users have sent one.
    first: dict[str, list[float]] = {}
    for name, load in {
        "ramp": {"kind": "ramp", "from_users": 2, "over_seconds": 0.4},
        "staggered": {"kind": "closed", "start": "staggered", "stagger_seconds": 0.1},
    }.items():
        url = serve(lambda c, r: c.sendall(MODELS if r[:4] == b"GET " else chunked(stream("text"))) or True).url
        _, transcripts = run(tmp_path, url, {"load": load})
        start = min(t.sent_seconds for t in transcripts)
        first[name] = sorted(min(t.sent_seconds for t in transcripts if t.user == user) - start for user in range(4))
    # two users begin, the third after 0.4 · 1/2 s and the fourth after 0.4 · 2/2 s.
    for got, least in zip(first["ramp"], (0, 0, 0.2, 0.4), strict=True):
        assert least - 0.01 <= got
    for got, least in zip(first["staggered"], (0, 0.1, 0.2, 0.3), strict=True):
        assert least - 0.01 <= got


@pytest.mark.parametrize(
    "load", [{"kind": "ramp", "over_seconds": 0.6}, {"kind": "closed", "start": "staggered", "stagger_seconds": 0.2}]
)
def test_growing_is_warm_up(tmp_path: Path, slow, load: dict[str, Any]) -> None:
    events, transcripts = run(tmp_path, slow.url, {"load": load, "window_seconds": 0.6})
    measured = [t for t in transcripts if t.label is Label.MEASURED]
    start = min(t.sent_seconds for t in transcripts)
    last_user = max(min(t.sent_seconds for t in transcripts if t.user == user) for user in range(4))
    assert last_user - start >= 0.6 - 0.01
    assert min(t.sent_seconds for t in measured) >= start + 0.6 - 0.01
    assert events[0]["window_starts_seconds"] == pytest.approx(start + 0.6, abs=0.1)
    # all four are meant to be in flight for the whole of the measured part.
    assert the_end(events)["client"]["intended_in_flight"] == pytest.approx(4)


def test_so_many_requests_of_a_schedule_end_it(tmp_path: Path, slow) -> None:
    # four users answer 40 requests/s at most, and what else falls due after the last request is nobody's.
    load = {"kind": "open", "rate_per_second": 400, "arrivals": "constant"}
    phase = {"load": load, "requests": 20, "level": 4}
    events, transcripts = run(tmp_path, slow.url, phase, request_timeout_seconds=50)
    end = the_end(events)
    assert (end["sent"]["measured"], end["unsent"], len({t.user for t in transcripts})) == (20, 0, 4)
    # the last answer is the end of the phase: no event tells of a time much after it.
    assert max((event["elapsed_seconds"] for event in events if event["event"] == "progress"), default=0) < 10


def test_waves_follow_one_another(tmp_path: Path, answering) -> None:
    load = {"kind": "waves", "sizes": [3, 1, 4], "repeats": 2}
    events, transcripts = run(tmp_path, answering.url, {"load": load})
    ordered = sorted(transcripts, key=lambda t: t.sent_seconds)
    assert {t.label for t in ordered} == {Label.MEASURED}
    start = 0
    for size in [3, 1, 4] * 2:
        wave = ordered[start : start + size]
        if start:
            assert min(t.sent_seconds for t in wave) >= max(t.ended_seconds for t in ordered[:start])
        start += size
    assert start == len(ordered)
    assert the_end(events)["summary"]["window"]["method"] == "whole"


def test_a_replay_keeps_to_its_trace(tmp_path: Path, answering) -> None:
    trace = tmp_path / "trace.jsonl"
    offsets = [0.0, 0.2, 0.2, 0.6]
    trace.write_text(
        "".join(
            json.dumps({"timestamp_seconds": at, "body": {"messages": [{"role": "user", "content": f"n{index}"}]}})
            + "\n"
            for index, at in enumerate(offsets)
        )
    )
    phase = {"load": {"kind": "replay", "path": str(trace), "speed": 2}, "warmup_seconds": 0.05}
    source = {"kind": "openai_requests", "path": str(trace), "order": "file"}
    events, transcripts = run(tmp_path, answering.url, phase, source=source)
    ordered = sorted(transcripts, key=lambda t: (t.scheduled_seconds, t.number))
    times = [t.scheduled_seconds for t in ordered if t.scheduled_seconds is not None]
    assert [at - times[0] for at in times] == pytest.approx([at / 2 for at in offsets])
    assert [f"n{index}" in t.sent_body for index, t in enumerate(ordered)] == [True] * 4
    assert [t.label for t in ordered] == [Label.WARMUP, *[Label.MEASURED] * 3]
    assert the_end(events)["sent"] == {"warmup": 1, "measured": 3, "cooldown": 0}


def test_shares_make_a_whole(tmp_path: Path, answering) -> None:
    numbers: list[int] = []
    for share in ("0/2", "1/2"):
        _, transcripts = run(tmp_path, answering.url, {"requests": 11, "level": 5}, "--share", share)
        numbers += [t.number for t in transcripts]
    # level 5, first pair, measured: 5 000 0 and the sequences 0 to 10, each sent by one of the two.
    assert sorted(numbers) == list(range(50_000_000_000, 50_000_000_011))


def test_conversations_go_on(tmp_path: Path, serve) -> None:
    def play(connection: socket.socket, request: bytes) -> bool:
        if request.startswith(b"GET "):
            connection.sendall(MODELS)
            return True
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        tool = body["tools"][0]["function"]["name"]
        call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = {
            "id": "a",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        data = json.dumps(answer).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
        connection.sendall(head + data)
        return True

    source = {"kind": "tool_calls", "streamed_share": 0, "sessions": {"fewest_turns": 3, "most_turns": 3}}
    workload = {"families": {"copy": 1}}
    events, transcripts = run(tmp_path, serve(play).url, {"requests": 24, "level": 2}, source=source, workload=workload)
    assert {t.outcome for t in transcripts} == {Outcome.COMPLETE}
    by_session: dict[str, list[Transcript]] = {}
    for t in transcripts:
        assert t.session is not None
        by_session.setdefault(t.session.session_id, []).append(t)
    assert the_end(events)["sent"]["measured"] == 24
    for turns in by_session.values():
        turns.sort(key=lambda t: t.sent_seconds)
        assert [t.session.index for t in turns if t.session] == list(range(len(turns)))
        assert len({t.user for t in turns}) == 1
        assert len({t.request_id for t in turns}) == len(turns)
        for earlier, later in pairwise(turns):
            assert later.sent_seconds >= earlier.ended_seconds
            # the result of the call goes back.
            assert any(message["role"] == "tool" for message in json.loads(later.sent_body)["messages"])
    assert max(len(turns) for turns in by_session.values()) == 3


def test_a_search_says_what_it_found(tmp_path: Path, answering) -> None:
    search = {"start": 1, "most": 2, "target_share": 0.5, "looks": 1}
    # a server that answers at once leaves the client as the limit, which would end the search.
    limits = {"least_in_flight_share": 0, "most_cpu_share": 10, "most_loop_lag_p99_seconds": 10}
    events, _ = run(tmp_path, answering.url, {}, search=search, slo={"e2e_seconds": 10}, limits=limits)
    ends = [event for event in events if event["event"] == "phase_end"]
    assert [(end["search_load"], end["level"], end["phase"]) for end in ends] == [(1, 1, 0), (2, 2, 1)]
    # so few requests may decide nothing; how they decide is CapacitySearch's own test.
    assert {end["decision"] for end in ends} <= {"meets", "cannot_tell"}
    assert events[-1] == {"event": "done", "phases": 2, "capacity": events[-1]["capacity"]}
