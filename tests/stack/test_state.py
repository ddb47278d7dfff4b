from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdwatch.stack import (
    AlreadyRunning,
    DeploymentSpec,
    NotRunning,
    Phase,
    ProcessState,
    StateUnreadable,
    SupervisorFailed,
    SupervisorState,
    bring_up,
    read_state,
    take_down,
)
from pdwatch.stack.state import start_ticks, state_path

MakeSpec = Callable[..., DeploymentSpec]
Behave = Callable[[dict[str, dict[str, Any]]], None]
AssertGone = Callable[[list[int]], None]


def all_pids(state: SupervisorState) -> list[int]:
    return [state.pid, *(status.pid for status in state.processes if status.pid is not None)]


def own_state(**fields: Any) -> SupervisorState:
    """A state as this very test process would write it as a supervisor."""
    ticks = start_ticks(os.getpid())
    defaults: dict[str, Any] = {
        "phase": Phase.READY,
        "pid": os.getpid(),
        "start_ticks": ticks,
        "spec": DeploymentSpec(),
    }
    return SupervisorState(**{**defaults, **fields})


def test_up_twice_then_down(make_spec: MakeSpec, tmp_path: Path, assert_gone: AssertGone) -> None:
    seen: list[tuple[str, ProcessState]] = []
    state = bring_up(make_spec(), tmp_path, 30, lambda status: seen.append((status.name, status.state)))
    try:
        assert state.phase is Phase.READY
        assert state.endpoints is not None
        assert ("decode-0", ProcessState.READY) in seen
        assert read_state(tmp_path) == state
        with pytest.raises(AlreadyRunning, match="already runs"):
            bring_up(make_spec(), tmp_path, 30)
        assert read_state(tmp_path) == state
    finally:
        assert take_down(tmp_path)
    assert_gone(all_pids(state))
    assert not take_down(tmp_path)
    with pytest.raises(NotRunning):
        read_state(tmp_path)


def test_the_supervisor_outlives_the_command_that_started_it(
    make_spec: MakeSpec, tmp_path: Path, assert_gone: AssertGone
) -> None:
    code = (
        "import sys; from pathlib import Path; from pdwatch.stack import DeploymentSpec, bring_up;"
        "bring_up(DeploymentSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]))"
    )
    spec = make_spec().model_dump_json()
    subprocess.run([sys.executable, "-c", code, spec, str(tmp_path)], check=True, timeout=60)
    state = read_state(tmp_path)
    assert state.alive
    assert take_down(tmp_path)
    assert_gone(all_pids(state))


def test_a_killed_supervisor_leaves_no_orphan_and_no_state(
    make_spec: MakeSpec, tmp_path: Path, assert_gone: AssertGone
) -> None:
    state = bring_up(make_spec(), tmp_path, 30)
    os.kill(state.pid, signal.SIGKILL)
    assert_gone(all_pids(state))
    with pytest.raises(NotRunning):
        read_state(tmp_path)
    assert not state_path(tmp_path).exists()
    again = bring_up(make_spec(), tmp_path, 30)
    assert again.pid != state.pid
    assert take_down(tmp_path)


def test_a_start_that_fails_says_why_and_is_remembered(make_spec: MakeSpec, behave: Behave, tmp_path: Path) -> None:
    behave({"decode-0": {"exit_code": 5, "line": "no such weights"}})
    with pytest.raises(SupervisorFailed, match=r"^decode-0 exited with code 5: no such weights \(log: "):
        bring_up(make_spec(), tmp_path, 30)
    state = read_state(tmp_path)
    assert state.phase is Phase.FAILED
    assert state.error is not None and "no such weights" in state.error
    assert not state.alive
    assert not take_down(tmp_path)


def test_a_later_crash_is_in_the_state(make_spec: MakeSpec, tmp_path: Path, assert_gone: AssertGone) -> None:
    state = bring_up(make_spec(), tmp_path, 30)
    victim = next(status for status in state.processes if status.name == "decode-0")
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    assert_gone(all_pids(state))
    failed = read_state(tmp_path)
    assert failed.phase is Phase.FAILED
    assert failed.error is not None and failed.error.startswith("decode-0 was killed by SIGKILL")
    states = {status.name: status.state for status in failed.processes}
    assert states["decode-0"] is ProcessState.DIED
    assert states["prefill-0"] is ProcessState.STOPPED


def test_a_supervisor_stopped_while_it_starts(make_spec: MakeSpec, behave: Behave, tmp_path: Path) -> None:
    behave({"reference": {"silent": True}})
    stopped: list[bool] = []

    def stop_once(_: object) -> None:
        if not stopped:
            stopped.append(take_down(tmp_path))

    with pytest.raises(SupervisorFailed, match="stopped before it was ready"):
        bring_up(make_spec(), tmp_path, 30, stop_once)
    assert stopped == [True]


def test_state_survives_the_file(tmp_path: Path) -> None:
    state = own_state(error="why")
    state.save(tmp_path / "state.json")
    assert SupervisorState.load(tmp_path / "state.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_reused_pid_is_neither_alive_nor_signalled(tmp_path: Path) -> None:
    # this process has the pid in the state, but started at another time: a signal would end the tests
    stale = own_state(start_ticks=1)
    assert own_state().alive
    assert not stale.alive
    stale.save(state_path(tmp_path))
    assert not take_down(tmp_path)
    assert not state_path(tmp_path).exists()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"phase": "ready", "pid": ', id="cut"),
        pytest.param(b'{"format": 2}', id="other_format"),
        pytest.param(b"\xff\xfe", id="not_text"),
    ],
)
def test_a_state_file_of_something_else(tmp_path: Path, content: bytes) -> None:
    state_path(tmp_path).write_bytes(content)
    with pytest.raises(StateUnreadable, match="not a deployment's state file") as caught:
        read_state(tmp_path)
    assert "\n" not in str(caught.value)


def test_start_ticks_of_a_name_with_parentheses_and_of_a_zombie(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "60"]) as child:
        ticks = start_ticks(child.pid)
        assert ticks is not None and ticks >= (start_ticks(os.getpid()) or 0)
        handle = os.pidfd_open(child.pid)
        child.kill()
        assert select.select([handle], [], [], 10)[0]
        os.close(handle)
        # dead, and not yet collected
        assert start_ticks(child.pid) is None
