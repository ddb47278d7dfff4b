from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdwatch.stack import launch
from pdwatch.stack.errors import PortInUse, ProcessDied, describe_exit
from pdwatch.stack.ports import PortReservation
from pdwatch.stack.processes import (
    ManagedProcess,
    ProcessPlan,
    ProcessState,
    child_environment,
    last_log_line,
    stop_all,
)

SLEEPER = "import signal, sys; print('up', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]); {SLEEPER}"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str], ManagedProcess]]:
    started: list[ManagedProcess] = []

    def start(code: str) -> ManagedProcess:
        log = tmp_path / f"child-{len(started)}.log"
        plan = ProcessPlan(
            name=log.stem,
            role="test",
            arguments=("-c", code),
            url="http://127.0.0.1:9",
            # the child has printed something: from then on it is where the test wants it
            is_ready=lambda: log.exists() and log.stat().st_size > 0,
        )
        process = ManagedProcess(plan, tmp_path)
        started.append(process)
        process.start()
        return process

    yield start
    stop_all(started, grace_seconds=0)


def wait_until_ready(process: ManagedProcess) -> None:
    deadline = time.monotonic() + 10
    while not process.probe():
        assert time.monotonic() < deadline
        process.check()


def wait_until_dead(process: ManagedProcess) -> ProcessDied:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            process.check()
        except ProcessDied as error:
            return error
    raise AssertionError("the process did not die")


def test_states_of_a_process_that_is_stopped(run: Callable[[str], ManagedProcess]) -> None:
    process = run(SLEEPER)
    states = [process.status.state]
    wait_until_ready(process)
    states.append(process.status.state)
    assert process.status.ready_after_seconds is not None
    stop_all([process], grace_seconds=10)
    states.append(process.status.state)
    assert states == [ProcessState.STARTING, ProcessState.READY, ProcessState.STOPPED]
    assert process.status.exit_code == -signal.SIGTERM


@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [
        pytest.param(
            "import sys; sys.exit('weights are broken')", 1, "exited with code 1: weights are broken", id="exit"
        ),
        pytest.param("import os; os._exit(7)", 7, "exited with code 7: it logged nothing", id="silent"),
        pytest.param(
            "import os, signal; print('so far', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
            -9,
            "was killed by SIGKILL: so far",
            id="signal",
        ),
    ],
)
def test_a_death_is_named(
    run: Callable[[str], ManagedProcess], tmp_path: Path, code: str, exit_code: int, message: str
) -> None:
    process = run(code)
    died = wait_until_dead(process)
    assert died.exit_code == exit_code
    assert str(died) == f"child-0 {message} (log: {tmp_path / 'child-0.log'})"
    assert process.status.state is ProcessState.DIED


def test_a_process_that_ignores_sigterm_is_killed(run: Callable[[str], ManagedProcess]) -> None:
    process = run(STUBBORN)
    wait_until_ready(process)
    stop_all([process], grace_seconds=0.1)
    assert process.status.exit_code == -signal.SIGKILL


def test_what_a_process_started_ends_with_it(
    run: Callable[[str], ManagedProcess], assert_gone: Callable[[list[int]], None]
) -> None:
    process = run(PARENT)
    wait_until_ready(process)
    pid = process.status.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    assert len(children) == 1
    stop_all([process], grace_seconds=10)
    assert_gone([int(children[0])])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["1", sys.executable], "parent 1 is gone", id="parent_died_before_the_signal_was_set"),
        pytest.param(None, "cannot run /nonexistent: No such file or directory", id="program_missing"),
    ],
)
def test_launch_refuses(arguments: list[str] | None, message: str) -> None:
    arguments = arguments or [str(os.getpid()), "/nonexistent"]
    result = subprocess.run([sys.executable, launch.__file__, *arguments], capture_output=True, text=True, timeout=30)
    assert result.returncode == 1
    assert result.stderr.strip() == message


def test_children_get_no_proxy_and_one_thread() -> None:
    parent = {"HTTPS_PROXY": "http://proxy", "all_proxy": "socks://proxy", "OMP_NUM_THREADS": "8", "HOME": "/home"}
    environment = child_environment(parent)
    assert not {"HTTPS_PROXY", "all_proxy"} & environment.keys()
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HOME"] == "/home"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(b"", None, id="empty"),
        pytest.param(b"\n  \n", None, id="blank"),
        pytest.param(b"first\nlast\n\n", "last", id="last_that_is_not_blank"),
        pytest.param(b"\x1b[2m12:00\x1b[0m \x1b[31mERROR\x1b[0m no\x07 port\n", "12:00 ERROR no port", id="colours"),
        pytest.param(b"\xff\xfe broken\n", "\ufffd\ufffd broken", id="not_utf8"),
        pytest.param(b"x" * 20_000, "x" * 300, id="cut"),
    ],
)
def test_last_log_line(tmp_path: Path, content: bytes, line: str | None) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(content)
    assert last_log_line(log) == line


def test_last_log_line_of_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert last_log_line(tmp_path / "missing.log") is None


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-15, "was killed by SIGTERM"),
        (-99, "was killed by signal 99"),
    ],
    ids=["zero", "code", "named_signal", "unnamed_signal"],
)
def test_describe_exit(exit_code: int, words: str) -> None:
    assert describe_exit(exit_code) == words


def test_a_reserved_port_can_be_listened_on_by_number_and_is_given_to_nobody_else() -> None:
    reservation = PortReservation("decode-0")
    try:
        others = [PortReservation(f"other-{index}") for index in range(200)]
        assert reservation.port not in {other.port for other in others}
        for other in others:
            other.release()
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", reservation.port))
            server.listen()
            with socket.create_connection(("127.0.0.1", reservation.port), timeout=5):
                pass
    finally:
        reservation.release()


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(PortInUse) as caught:
            PortReservation("router", port)
    assert str(caught.value) == (
        f"port {port} for router cannot be bound: address already in use; ask for another one, or for none"
    )
