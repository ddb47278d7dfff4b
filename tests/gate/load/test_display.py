"""Talk while a load runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdwatch.gate.load.display import Display, LiveDisplay, PlainDisplay, QuietDisplay, open_display
from pdwatch.gate.load.options import LoadOptions
from pdwatch.gate.load.plan import make_load_plan
from pdwatch.gate.load.probe import Server
from pdwatch.gate.load.progress import Progress, Watcher
from pdwatch.gate.load.results import LevelResult


@pytest.fixture
def progress() -> Progress:
    options = LoadOptions("http://127.0.0.1:1", slo="ttft=1s")
    return Progress(make_load_plan(options, Server("small", (), "openai", "as asked")))


def play(display: Display, progress: Progress, level: LevelResult) -> None:
    with display:
        display.say("run folder x\x1b[31m")
        progress.current = "1 user"
        display.show(progress)
        progress.live = {"ttft_p50_seconds": 0.25, "ttft_p99_seconds": 0.5, "tpot_p50_seconds": None, "good_share": 0.5}
        progress.ended, progress.in_flight = 7, 1
        display.show(progress)
        progress.levels.append(level)
        progress.current = None
        display.show(progress)
        display.show(progress)


def test_lines(progress: Progress, level: Callable[..., LevelResult], capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter(range(0, 1000, 11))
    play(PlainDisplay(lambda: next(seconds)), progress, level(good=50))
    lines = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "run folder x\\x1b[31m",
        "1 user …",
        "1 user: 7 ended, 1 in flight, TTFT p50 250 ms, TPOT p50 – ms",
        "1 user: 100 answered, 0 failed",
    ]


def test_a_live_table(
    progress: Progress, level: Callable[..., LevelResult], capsys: pytest.CaptureFixture[str]
) -> None:
    play(LiveDisplay(), progress, level(good=50))
    assert "run folder x" in capsys.readouterr().err


def test_quiet(progress: Progress, level: Callable[..., LevelResult], capsys: pytest.CaptureFixture[str]) -> None:
    play(QuietDisplay(), progress, level())
    assert capsys.readouterr().err == ""
    assert isinstance(open_display(quiet=True), QuietDisplay)
    assert isinstance(open_display(quiet=False), PlainDisplay)


def test_a_search_says_which_look_and_about_how_long(level: Callable[..., LevelResult]) -> None:
    options = LoadOptions("http://127.0.0.1:1", slo="ttft=1s", find_capacity=True, warmup=2.0)
    progress = Progress(make_load_plan(options, Server("small", (), "openai", "as asked")))
    notes: list[tuple[str, str]] = []
    watch = Watcher(progress, 0.95, lambda text: None, lambda progress: None)

    def look(users: int, requests: int, **changes: Any) -> None:
        about = {"phase": len(notes), "arm": "candidate", "level": users, "load": "closed"}
        watch({"event": "phase_start", **about, "requests": requests})
        notes.append((progress.current or "", progress.note))
        made = level(users=users, **changes)
        event = {"summary": made.summary.to_record(), "client": made.client.model_dump(mode="json")}
        watch({"event": "phase_end", **about, **event, "validity": made.validity.model_dump(mode="json")})

    look(4, 400)
    look(8, 400, reasons=("late",), complete_per_second=20.0)
    look(8, 8000, complete_per_second=20.0)
    look(8, 400)
    assert notes == [
        ("4 users", "look 1 of at most 4: 400 requests"),
        # 10 requests/s with 4 users make 20 with 8
        ("8 users", "look 1 of at most 4: 400 requests, about 22 s"),
        ("8 users", "look 1 of at most 4: 8000 requests, about 7 min"),
        ("8 users", "look 2 of at most 4: 400 requests, about 22 s"),
    ]
    assert [result.look for result in progress.levels] == [1, 1, 1, 2]
