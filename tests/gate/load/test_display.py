"""Talk while a load runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pdwatch.gate.load.display import Display, LiveDisplay, PlainDisplay, QuietDisplay, open_display
from pdwatch.gate.load.options import LoadOptions
from pdwatch.gate.load.plan import make_load_plan
from pdwatch.gate.load.probe import Server
from pdwatch.gate.load.results import LevelResult
from pdwatch.gate.load.run import Progress


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
