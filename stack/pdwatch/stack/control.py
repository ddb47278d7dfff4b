"""Bring a supervised deployment up and take it down from another process."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdwatch.stack.deployment import STOP_GRACE_SECONDS, Progress
from pdwatch.stack.errors import AlreadyRunning, NotRunning, StackError, SupervisorFailed, describe_exit
from pdwatch.stack.processes import ProcessState, child_environment, last_log_line
from pdwatch.stack.spec import DeploymentSpec
from pdwatch.stack.state import Phase, SupervisorState, state_path

_POLL_SECONDS = 0.05
# the supervisor's own grace for its children, and time to start or end an interpreter
_STOP_SECONDS = STOP_GRACE_SECONDS + 5.0
_START_SECONDS = 10.0


def bring_up(
    spec: DeploymentSpec,
    directory: Path,
    timeout_seconds: float = 60.0,
    progress: Progress | None = None,
) -> SupervisorState:
    """Start a detached supervisor for ``spec`` and return its state once the deployment is ready.

    ``progress`` gets each process as its state changes. Raises AlreadyRunning and SupervisorFailed; a failed or
    interrupted start leaves nothing running.
    """
    directory = directory.absolute()
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    with _lock(directory) as lock:
        state_path(directory).unlink(missing_ok=True)
        log_path = directory / "logs" / "supervisor.log"
        with log_path.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "pdwatch.stack.supervisor", str(directory), str(timeout_seconds)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(os.environ),
                start_new_session=True,
                # the supervisor keeps the lock for as long as it lives
                pass_fds=(lock,),
            )
        try:
            _hand_over(supervisor, spec)
            state = _await_ready(supervisor, directory, log_path, timeout_seconds + _START_SECONDS, progress)
        except BaseException:
            _end(supervisor)
            raise
    # a caller that lives on must still collect the exit code
    threading.Thread(target=supervisor.wait, name="supervisor-reaper", daemon=True).start()
    return state


def take_down(directory: Path) -> bool:
    """Stop the deployment in ``directory`` and forget its state; False when none was running."""
    path = state_path(directory)
    state = SupervisorState.load(path)
    if state is None:
        return False
    was_running = _end_by_state(state)
    path.unlink(missing_ok=True)
    return was_running


def read_state(directory: Path) -> SupervisorState:
    """State of the deployment in ``directory``, running or failed. Raises NotRunning and StateUnreadable.

    The state of a supervisor that was killed is removed: it describes processes that died with it.
    """
    path = state_path(directory)
    state = SupervisorState.load(path)
    if state is None:
        raise NotRunning(directory)
    if state.phase is not Phase.FAILED and not state.alive:
        path.unlink(missing_ok=True)
        raise NotRunning(directory)
    return state


@contextmanager
def _lock(directory: Path) -> Iterator[int]:
    with (directory / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(directory) from None
        yield file.fileno()


def _hand_over(supervisor: subprocess.Popen[bytes], spec: DeploymentSpec) -> None:
    assert supervisor.stdin is not None
    try:
        supervisor.stdin.write(spec.model_dump_json().encode())
        supervisor.stdin.close()
    except BrokenPipeError:
        # it has ended already; why is told by its exit and its log
        return


def _await_ready(
    supervisor: subprocess.Popen[bytes],
    directory: Path,
    log_path: Path,
    timeout_seconds: float,
    progress: Progress | None,
) -> SupervisorState:
    deadline = time.monotonic() + timeout_seconds
    seen: dict[str, ProcessState] = {}
    while True:
        # asked before the state is read: what it wrote last is then not missed
        exit_code = supervisor.poll()
        state = SupervisorState.load(state_path(directory))
        if state is not None:
            for status in state.processes:
                if progress is not None and seen.get(status.name) is not status.state:
                    progress(status)
                seen[status.name] = status.state
            if state.phase is Phase.READY:
                return state
            if state.phase is Phase.FAILED:
                raise SupervisorFailed(state.error or f"it gave no reason; its log is {log_path}")
        if exit_code == 0:
            raise SupervisorFailed("the deployment was stopped before it was ready")
        if exit_code is not None:
            line = last_log_line(log_path) or "it logged nothing"
            raise SupervisorFailed(f"the supervisor {describe_exit(exit_code)}: {line} (log: {log_path})")
        if time.monotonic() >= deadline:
            raise SupervisorFailed(f"the supervisor did not answer in {timeout_seconds:g} s; its log is {log_path}")
        time.sleep(_POLL_SECONDS)


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    try:
        supervisor.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # its children go with it: each has a parent-death signal
        supervisor.kill()
        supervisor.wait()


def _end_by_state(state: SupervisorState) -> bool:
    """End the supervisor that wrote ``state``; False when it was gone already."""
    try:
        handle = os.pidfd_open(state.pid)
    except ProcessLookupError:
        return False
    try:
        # the handle is of whoever has the pid now, so the identity is checked after it was taken
        if not state.alive:
            return False
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return True
            if select.select([handle], [], [], _STOP_SECONDS)[0]:
                return True
    finally:
        os.close(handle)
    raise StackError(f"supervisor {state.pid} does not end even when killed: look at it with ps")
