"""The state file of `pdwatch up`: what its supervisor runs, readable by every other process."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdwatch.stack.deployment import Endpoints
from pdwatch.stack.errors import StateUnreadable
from pdwatch.stack.processes import ProcessStatus
from pdwatch.stack.spec import DeploymentSpec

_FILE_BYTES = 1 << 20


class Phase(StrEnum):
    """Where a supervised deployment stands; ``failed`` outlives the supervisor, to tell why."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class SupervisorState(BaseModel):
    """A supervised deployment; ``pid`` and ``start_ticks`` together identify the supervisor beyond pid reuse."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    phase: Phase
    pid: int = Field(ge=1)
    start_ticks: int
    spec: DeploymentSpec
    endpoints: Endpoints | None = None
    processes: tuple[ProcessStatus, ...] = ()
    error: str | None = None

    @property
    def alive(self) -> bool:
        """Whether the supervisor that wrote this still runs."""
        return start_ticks(self.pid) == self.start_ticks

    def save(self, path: Path) -> None:
        """Replace the file at ``path`` in one step, so that a reader sees the old state or the new one."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The state at ``path``, None when there is no file. Raises StateUnreadable."""
        try:
            with path.open("rb") as file:
                text = file.read(_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateUnreadable(path, error.strerror or str(error)) from error
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise StateUnreadable(path, error.errors()[0]["msg"]) from error


def state_path(directory: Path) -> Path:
    """Where the state of the deployment in ``directory`` lies."""
    return directory / "state.json"


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, field 22 of /proc/PID/stat; None when it is not running.

    A zombie counts as not running: nothing of it is left but its exit code.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the program's name, in parentheses, may itself hold spaces and parentheses
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[22 - 3])
