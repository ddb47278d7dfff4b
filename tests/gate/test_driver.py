"""The load generator's process: its events are relayed, its death is told, it never outlives the gate."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pdwatch.gate import driver
from pdwatch.gate.errors import LoadFailed
from pdwatch.gate.planning import make_plan, planned_seconds
from pdwatch.gate.policy import GatePolicy, load_policy

SAYS = """
import sys
print('{"event": "phase_start", "level": 4}', flush=True)
print('a stray print', flush=True)
print('{"event": "done"}', flush=True)
"""
DIES = "import sys; sys.exit('loadgen: the journal cannot be written')"
HANGS = """
import os, signal
print('{"event": "started", "pid": %d}' % os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a program in the load generator's place."""

    def place(code: str) -> Path:
        folder = tmp_path / "modules"
        folder.mkdir()
        (folder / "stand_in.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setattr(driver, "MODULE", "stand_in")
        return tmp_path

    return place


def nothing() -> None:
    return None


def test_events_are_relayed_and_stray_lines_passed_over(program: Callable[[str], Path]) -> None:
    folder = program(SAYS)
    events: list[driver.Event] = []
    driver.drive(folder / "plan.json", folder, folder / "logs" / "loadgen.log", events.append, nothing)
    assert [event["event"] for event in events] == ["phase_start", "done"]


def test_an_early_end_is_told_with_the_last_words(program: Callable[[str], Path]) -> None:
    folder = program(DIES)
    with pytest.raises(LoadFailed, match=r"exited with code 1: the journal cannot be written \(log: "):
        driver.drive(folder / "plan.json", folder, folder / "logs" / "loadgen.log", lambda event: None, nothing)


def test_a_dead_server_ends_the_load(program: Callable[[str], Path]) -> None:
    folder = program(HANGS)
    started: list[driver.Event] = []

    def check() -> None:
        if started:
            raise RuntimeError("decode-0 died")

    with pytest.raises(RuntimeError, match="decode-0 died"):
        driver.drive(folder / "plan.json", folder, folder / "logs" / "loadgen.log", started.append, check)
    # its process id is gone: only a child that has ended and been reaped takes no signal
    with pytest.raises(ProcessLookupError):
        os.kill(int(started[0]["pid"]), 0)


def test_the_baseline_runs_before_and_after_the_candidate() -> None:
    policy: GatePolicy = load_policy(options={"load.levels": (1, 4), "load.window_seconds": 8.0})
    plan = make_plan(policy, {"candidate": "http://127.0.0.1:1", "baseline": "http://127.0.0.1:2"}, "m")
    assert [(phase.arm, phase.level, phase.window_seconds) for phase in plan.phases] == [
        ("baseline", 1, 4.0),
        ("candidate", 1, 8.0),
        ("baseline", 1, 4.0),
        ("baseline", 4, 4.0),
        ("candidate", 4, 8.0),
        ("baseline", 4, 4.0),
    ]
    # two levels of 8 + 4 + 4 s in windows, and six warm-ups of 2 s
    assert planned_seconds(plan) == 2 * 16 + 6 * 2
    alone = make_plan(policy, {"candidate": "http://127.0.0.1:1"}, "m")
    assert [(phase.arm, phase.level) for phase in alone.phases] == [("candidate", 1), ("candidate", 4)]
