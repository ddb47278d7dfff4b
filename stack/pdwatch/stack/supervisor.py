"""The process behind `pdwatch up`: owns one deployment and keeps its state file true.

``python -m pdwatch.stack.supervisor DIRECTORY TIMEOUT_SECONDS`` with the spec as JSON on stdin. It ends with its
deployment: at SIGTERM or SIGINT (exit 0, state file removed), or when a process dies (exit 3, phase ``failed``).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from pdwatch.stack.deployment import Deployment
from pdwatch.stack.errors import StackError
from pdwatch.stack.spec import DeploymentSpec
from pdwatch.stack.state import Phase, SupervisorState, start_ticks, state_path

EXIT_FAILED = 3
_LOOK_EVERY_SECONDS = 0.1


class StopRequest:
    """Set by the first SIGTERM or SIGINT.

    The handler does nothing else: an exception raised from it could surface anywhere, and a lock taken in it could be
    one that the interrupted code holds.
    """

    def __init__(self) -> None:
        self.made = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._make)

    def _make(self, number: int, frame: FrameType | None) -> None:
        self.made = True


class StateFile:
    """The state of this process's deployment, written whenever it changes."""

    def __init__(self, spec: DeploymentSpec, directory: Path) -> None:
        ticks = start_ticks(os.getpid())
        if ticks is None:
            raise StackError("/proc does not show this process: mount it, the state file depends on it")
        self._path = state_path(directory)
        self._state = SupervisorState(phase=Phase.STARTING, pid=os.getpid(), start_ticks=ticks, spec=spec)
        self._state.save(self._path)

    def update(self, **fields: Any) -> None:
        state = self._state.model_copy(update=fields)
        if state != self._state:
            self._state = state
            state.save(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def supervise(deployment: Deployment, state: StateFile, stop: StopRequest, timeout_seconds: float) -> None:
    """Keep ``state`` true until a stop is requested.

    Raises ProcessDied when a process ends, and NotReady when some are not ready after ``timeout_seconds``.
    """
    deadline = time.monotonic() + timeout_seconds
    while not stop.made:
        deployment.check()
        phase = Phase.READY if deployment.ready else Phase.STARTING
        state.update(phase=phase, endpoints=deployment.endpoints, processes=deployment.processes)
        if not deployment.ready and time.monotonic() >= deadline:
            raise deployment.not_ready(timeout_seconds)
        time.sleep(_LOOK_EVERY_SECONDS)


def main(arguments: list[str]) -> int:
    """Supervise one deployment; returns the exit code."""
    stop = StopRequest()
    directory, timeout_seconds = Path(arguments[0]), float(arguments[1])
    spec = DeploymentSpec.model_validate_json(sys.stdin.buffer.read())
    state = StateFile(spec, directory)
    try:
        with Deployment.start(spec, directory) as deployment:
            try:
                supervise(deployment, state, stop, timeout_seconds)
            finally:
                # which process died, and which were stopped for it
                deployment.stop()
                state.update(processes=deployment.processes)
    except StackError as error:
        state.update(phase=Phase.FAILED, error=str(error))
        print(error, file=sys.stderr)
        return EXIT_FAILED
    state.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
