"""Profiles taken from a server that stands in for SGLang 0.5.23: it writes traces where it is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pdwatch.exporters import CaptureFailed, CaptureRefused, Exporter, TraceInvalid
from pdwatch.exporters.profile import (
    Capturer,
    CaptureSettings,
    HistoryFile,
    KernelRules,
    LoadGuard,
    Profile,
    ProfileSource,
    Schedule,
    Target,
    profile_trace,
    read_rules,
)
from pdwatch.exporters.profile.capture import API_KEY_VARIABLE, profile_apart
from pdwatch.exporters.profile.load import running_requests

if TYPE_CHECKING:
    from tests.exporters.conftest import Clock

DATA = Path(__file__).parents[1] / "data"
TRACE = DATA / "traces" / "h200_captured.json.gz"
TARGET = Target("decode-0", "http://127.0.0.1:30001")
RUNNING = 'sglang:num_running_reqs{engine_type="decode",model_name="m",tp_rank="0"} %s\n'


def profile_here(
    path: Path, rules: KernelRules, target: str, unix_seconds: float, graphs_per_step: int
) -> list[Profile]:
    return profile_trace(path, rules, target=target, unix_seconds=unix_seconds, graphs_per_step=graphs_per_step)


class Server:
    """Stands in for SGLang. `ranks` are the traces it writes, `writes` how many polls each takes to be whole."""

    def __init__(self) -> None:
        self.metrics = RUNNING % 8.0
        self.ranks = ["TP-0"]
        self.writes = 3
        self.trace = TRACE
        self.requests: list[tuple[str, str]] = []
        self.profile: dict[str, Any] = {}
        self.status = {"/metrics": 200, "/start_profile": 200, "/stop_profile": 200}
        self.headers: list[str | None] = []
        self._polls = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.requests.append((request.method, path))
        self.headers.append(request.headers.get("Authorization"))
        if path == "/start_profile":
            self.profile = json.loads(request.content)
        text = self.metrics if path == "/metrics" else "Start profiling.\n"
        return httpx.Response(self.status[path], text=text)

    def poll(self, seconds: float) -> None:
        """What goes on while the exporter sleeps: the traces grow."""
        self._polls += 1
        if not self.profile:
            return
        whole = self.trace.read_bytes()
        for rank in self.ranks:
            path = Path(self.profile["output_dir"]) / f"{self.profile['profile_id']}-{rank}.trace.json.gz"
            path.write_bytes(whole[: len(whole) * min(self._polls, self.writes) // self.writes])


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def capturer_of(server: Server, tmp_path: Path) -> Iterator[Callable[..., Capturer]]:
    made: list[Capturer] = []

    def make(clock: Clock | None = None, **settings: Any) -> Capturer:
        seconds = iter(range(100_000))
        client = httpx.Client(transport=httpx.MockTransport(server.answer))
        made.append(
            Capturer(
                CaptureSettings(directory=tmp_path / "traces", **settings),
                read_rules(),
                client=client,
                profiler=profile_here,
                unix_time=lambda: 1e9,
                monotonic=lambda: float(next(seconds)),
                sleep=server.poll,
            )
        )
        return made[-1]

    yield make
    for capturer in made:
        capturer.close()


def test_takes_a_profile(server: Server, capturer_of: Callable[..., Capturer], tmp_path: Path) -> None:
    (profile,) = capturer_of().capture(TARGET)
    assert (profile.target, profile.rank, profile.unix_seconds) == ("decode-0", "tp0", 1e9)
    assert profile.steps is not None and profile.steps.count == 10
    assert server.requests == [("GET", "/metrics"), ("POST", "/start_profile")]
    assert server.profile == {
        "output_dir": str(tmp_path / "traces"),
        "num_steps": 30,
        "activities": ["CPU", "GPU"],
        "profile_id": "pdwatch-decode-0-1000000000000",
        "with_stack": False,
        "record_shapes": False,
    }
    # a trace is megabytes: it does not stay
    assert not list((tmp_path / "traces").iterdir())


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    arguments = (TRACE, read_rules(), "decode-0", 1.0, 1)
    assert profile_apart(*arguments) == profile_here(*arguments)
    with pytest.raises(TraceInvalid, match="cannot be read"):
        profile_apart(tmp_path / "none.json", *arguments[1:])


def test_traces_are_kept_when_asked(server: Server, capturer_of: Callable[..., Capturer], tmp_path: Path) -> None:
    server.ranks = ["TP-0", "TP-1"]
    profiles = capturer_of(keep_traces=True).capture(TARGET)
    assert [profile.rank for profile in profiles] == ["tp0", "tp1"]
    assert len(list((tmp_path / "traces").iterdir())) == 2


def test_only_our_own_traces_are_touched(server: Server, capturer_of: Callable[..., Capturer], tmp_path: Path) -> None:
    other = tmp_path / "traces" / "someone-TP-0.trace.json.gz"
    other.parent.mkdir()
    shutil.copy(TRACE, other)
    capturer_of().capture(TARGET)
    assert list(other.parent.iterdir()) == [other]


@pytest.mark.parametrize(
    ("metrics", "outcome"),
    [
        (RUNNING % 0.0, "too_idle"),
        (RUNNING % 65.0, "too_busy"),
        ("", "load_unknown"),
        (RUNNING % "NaN", "load_unknown"),
        ("sglang:num_running_reqs{ 5\n", "load_unknown"),
        ("sglang:num_queue_reqs 5.0\n", "load_unknown"),
    ],
)
def test_the_load_forbids_a_profile(
    server: Server, capturer_of: Callable[..., Capturer], metrics: str, outcome: str
) -> None:
    server.metrics = metrics
    with pytest.raises(CaptureRefused) as raised:
        capturer_of().capture(TARGET)
    assert raised.value.outcome == outcome
    # the server was not disturbed
    assert server.requests == [("GET", "/metrics")]


def test_the_guard_is_set_by_whoever_runs_it(server: Server, capturer_of: Callable[..., Capturer]) -> None:
    server.metrics = RUNNING % 500.0
    assert capturer_of(guard=LoadGuard(0, 500)).capture(TARGET)


def test_a_trace_that_never_comes_is_given_up_and_profiling_stopped(
    server: Server, capturer_of: Callable[..., Capturer]
) -> None:
    server.ranks = []
    with pytest.raises(
        CaptureFailed, match=r"decode-0 wrote no trace into .* within 20 s: does it run on this machine"
    ):
        capturer_of(timeout_seconds=20.0).capture(TARGET)
    assert server.requests[-1] == ("POST", "/stop_profile")


def test_a_trace_without_gpu_work_is_refused_and_removed(
    server: Server, capturer_of: Callable[..., Capturer], tmp_path: Path
) -> None:
    server.trace = DATA / "traces" / "cpu_step.json.gz"
    with pytest.raises(TraceInvalid, match="no GPU did anything"):
        capturer_of().capture(TARGET)
    assert not list((tmp_path / "traces").iterdir())


@pytest.mark.parametrize("path", ["/metrics", "/start_profile"])
def test_a_server_that_refuses_is_named(server: Server, capturer_of: Callable[..., Capturer], path: str) -> None:
    server.status[path] = 401
    with pytest.raises(CaptureFailed, match=f"decode-0: http://127.0.0.1:30001{path} answered HTTP 401"):
        capturer_of(timeout_seconds=5.0).capture(TARGET)


def test_a_server_that_is_not_there_is_named(tmp_path: Path, free_port: int) -> None:
    capturer = Capturer(CaptureSettings(directory=tmp_path), read_rules())
    with pytest.raises(CaptureFailed, match="cannot be asked"):
        capturer.capture(Target("gone", f"http://127.0.0.1:{free_port}"))
    capturer.close()


def test_the_key_is_sent_but_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "secret-key")
    capturer = Capturer(CaptureSettings(directory=tmp_path), read_rules())
    assert capturer._client.headers["Authorization"] == "Bearer secret-key"
    with pytest.raises(CaptureFailed) as raised:
        capturer.capture(Target("gone", f"http://127.0.0.1:{free_port}"))
    assert "secret" not in str(raised.value)
    capturer.close()


def test_running_requests_of_recorded_workers() -> None:
    # recorded from SGLang 0.5.17 and 0.5.23; a decode worker at rest shows none, or zero
    for name in ("metrics_decode.txt", "metrics_unified_0523.txt"):
        text = (DATA / "sglang" / name).read_text(encoding="utf-8")
        assert running_requests(text) in (None, 0, 1, 2)


def test_complaint_13_ranks_are_not_counted_twice() -> None:
    # eight ranks of tensor parallelism run the same requests, two of data parallelism different ones
    lines = [
        f'sglang_num_running_reqs{{dp_rank="{replica}",tp_rank="{rank}"}} {5 + replica}\n'
        for replica in range(2)
        for rank in range(8)
    ]
    assert running_requests("".join(lines)) == 11


@pytest.mark.parametrize(
    "text", ["x", "x=", "=http://a:1", "a b=http://a:1", "x=ftp://a:1", "x=http://a:1/path", "x=http://u@a:1"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(CaptureFailed, match="name=http://host:port"):
        Target.parse(text)


def test_targets() -> None:
    assert Target.parse("decode-0=http://127.0.0.1:30001/") == TARGET


def test_the_schedule_counts_what_it_did(server: Server, capturer_of: Callable[..., Capturer], tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "profiles.jsonl")
    schedule = Schedule(capturer_of(), [TARGET], history, 3600.0)
    schedule.take_all()
    server.metrics = RUNNING % 0.0
    schedule.take_all()
    server.status["/metrics"] = 500
    schedule.take_all()
    counts = {outcome: count for (_, outcome), count in schedule.outcomes().items() if count}
    assert counts == {"success": 1, "too_idle": 1, "failed": 1}
    exporter = Exporter("profile", ProfileSource(history, schedule))
    text = exporter.scrape().exposition("", False).body.decode()
    assert 'pdwatch_profile_captures_total{outcome="too_idle",target="decode-0"} 1.0' in text
    assert 'pdwatch_profile_share_ratio{group="gemm",rank="tp0",target="decode-0"}' in text
    exporter.close()
