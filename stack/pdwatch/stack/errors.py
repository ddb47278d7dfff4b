"""Errors of the deployment. Each message is one line that names the value and the remedy.

StackError
├── SpecInvalid        what was asked for cannot be deployed
├── PortInUse          an asked-for port belongs to someone else
├── ProcessDied        a process of the deployment ended by itself
├── NotReady           a process did not become ready in time
├── AlreadyRunning     `pdwatch up` in a directory that has a deployment
├── NotRunning         `pdwatch status` in a directory that has none
├── SupervisorFailed   the supervisor of `pdwatch up` gave up, and said why
└── StateUnreadable    the state file is not one that `pdwatch up` wrote
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path


class StackError(Exception):
    """The deployment could not do what it was asked."""


class SpecInvalid(StackError):
    """What was asked for cannot be deployed."""


class PortInUse(StackError):
    """An asked-for port cannot be bound."""

    def __init__(self, port: int, name: str, reason: str) -> None:
        super().__init__(f"port {port} for {name} cannot be bound: {reason}; ask for another one, or for none")
        self.port = port
        self.name = name


class ProcessDied(StackError):
    """A process of the deployment ended although nobody had asked it to.

    ``exit_code`` is negative when a signal ended it, as ``subprocess`` has it.
    """

    def __init__(self, name: str, exit_code: int, last_log_line: str | None, log_path: Path) -> None:
        super().__init__(
            f"{name} {describe_exit(exit_code)}: {last_log_line or 'it logged nothing'} (log: {log_path})",
        )
        self.name = name
        self.exit_code = exit_code
        self.last_log_line = last_log_line
        self.log_path = log_path


class NotReady(StackError):
    """Some processes did not become ready in time."""

    def __init__(self, names: Sequence[str], timeout_seconds: float, logs: Path) -> None:
        super().__init__(f"not ready after {timeout_seconds:g} s: {', '.join(names)}; their logs are in {logs}")
        self.names = tuple(names)


class AlreadyRunning(StackError):
    """The directory already has a running deployment."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"a deployment already runs in {directory}: stop it with `pdwatch down` or use --directory")


class NotRunning(StackError):
    """The directory has no running deployment."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"no deployment runs in {directory}: start one with `pdwatch up`")


class SupervisorFailed(StackError):
    """The supervisor ended before the deployment was ready; the message is its own."""


class StateUnreadable(StackError):
    """The state file exists but does not hold a deployment's state."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a deployment's state file ({reason}): remove it once nothing runs")


def describe_exit(exit_code: int) -> str:
    """Say how a process ended: ``exited with code 3`` or ``was killed by SIGKILL``."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
