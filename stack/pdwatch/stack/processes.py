"""One child process of a deployment: started, probed, and ended together with what it started itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pdwatch.stack import launch
from pdwatch.stack.errors import ProcessDied

Role = str

LOG_TAIL_BYTES = 8192
LOG_LINE_CHARACTERS = 300
_POLL_SECONDS = 0.02
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class ProcessState(StrEnum):
    """Where a process stands; ``died`` is an end that nobody had asked for."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What to run as ``python ARGUMENTS`` and how to see that it is ready."""

    name: str
    role: Role
    arguments: tuple[str, ...]
    url: str
    is_ready: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process as it stood a moment ago; ``pid`` is None before its start."""

    name: str
    role: Role
    pid: int | None
    url: str
    state: ProcessState
    log_path: Path
    ready_after_seconds: float | None = None
    exit_code: int | None = None


class ManagedProcess:
    """A child in a process group of its own, whose output goes to ``<logs>/<name>.log``.

    ``start`` must be called by a thread that outlives the child: the child is killed when that thread ends.
    """

    def __init__(self, plan: ProcessPlan, logs: Path) -> None:
        self.plan = plan
        self.log_path = logs / f"{plan.name}.log"
        self._popen: subprocess.Popen[bytes] | None = None
        self._state = ProcessState.WAITING
        self._started_seconds = 0.0
        self._ready_after_seconds: float | None = None

    @property
    def status(self) -> ProcessStatus:
        popen = self._popen
        return ProcessStatus(
            name=self.plan.name,
            role=self.plan.role,
            pid=None if popen is None else popen.pid,
            url=self.plan.url,
            state=self._state,
            log_path=self.log_path,
            ready_after_seconds=self._ready_after_seconds,
            exit_code=None if popen is None else popen.returncode,
        )

    def start(self) -> None:
        """Start the child. Raises OSError when the log cannot be opened or the interpreter cannot run."""
        # -P: what lies in the caller's folder must not shadow what the child imports
        program = [sys.executable, "-P", *self.plan.arguments]
        command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *program]
        # an earlier deployment in the same folder must not speak for this one
        self.log_path.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(os.environ),
                process_group=0,
            )
        self._started_seconds = time.monotonic()
        self._state = ProcessState.STARTING

    def probe(self) -> bool:
        """Ask a starting child whether it is ready; True when this call found it so. Blocks for one probe."""
        if self._state is not ProcessState.STARTING or not self.plan.is_ready():
            return False
        self._ready_after_seconds = time.monotonic() - self._started_seconds
        self._state = ProcessState.READY
        return True

    def check(self) -> None:
        """Raise ProcessDied when a started child has ended."""
        if self._popen is None or self._state not in (ProcessState.STARTING, ProcessState.READY):
            return
        exit_code = self._popen.poll()
        if exit_code is None:
            return
        self._state = ProcessState.DIED
        raise ProcessDied(self.plan.name, exit_code, last_log_line(self.log_path), self.log_path)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and to what it started; harmless when all of them are gone."""
        if self._popen is None:
            return
        try:
            os.killpg(self._popen.pid, number)
        except ProcessLookupError:
            return

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def reap(self) -> None:
        """Collect the exit code of a child that has been told to end, and mark it stopped."""
        if self._popen is None:
            return
        self._popen.wait()
        if self._state is not ProcessState.DIED:
            self._state = ProcessState.STOPPED


def stop_all(processes: Sequence[ManagedProcess], grace_seconds: float) -> None:
    """End all processes: SIGTERM at once to all groups, SIGKILL to what is left after ``grace_seconds``, then reap."""
    for process in processes:
        process.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(process.running for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    # also when all children have ended: what they started may live on in their groups
    for process in processes:
        process.signal_group(signal.SIGKILL)
    for process in processes:
        process.reap()


def child_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Environment of a child: the parent's, without proxies, with one compute thread and plain unbuffered output."""
    environment = {name: value for name, value in parent.items() if not name.lower().endswith("_proxy")}
    environment.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    environment.update(NO_PROXY="*", NO_COLOR="1", PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="1")
    return environment


def last_log_line(path: Path) -> str | None:
    """Last line of a log that says something, without control characters and cut to one readable length."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            tail = log.read(LOG_TAIL_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    for line in reversed(tail.splitlines()):
        printable = "".join(character for character in _CONTROL_SEQUENCE.sub("", line) if character.isprintable())
        if printable.strip():
            return printable.strip()[:LOG_LINE_CHARACTERS]
    return None
