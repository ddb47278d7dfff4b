"""A run is a folder. `run.json` is there from the first moment and replaced as a whole at every change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdwatch.gate.atomic import write_bytes_atomically
from pdwatch.gate.errors import RunFolderError
from pdwatch.gate.new_folder import new_folder
from pdwatch.gate.policy import GatePolicy

SCHEMA = "pdwatch.run/1"


class State(StrEnum):
    """How far a run came. A folder that says `running` with no process behind it was killed."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


class WorkerRecord(BaseModel):
    """One server process of the run; `server_info` is what it says about itself, secrets hidden."""

    model_config = ConfigDict(frozen=True)

    name: str
    arm: str
    role: str
    url: str
    metrics_url: str | None
    server_info: dict[str, Any] | None = None


class PhaseRecord(BaseModel):
    """One planned phase."""

    model_config = ConfigDict(frozen=True)

    index: int
    arm: str
    level: int
    warmup_seconds: float
    window_seconds: float


class ClientRecord(BaseModel):
    """Whether the load generator kept up in one phase, with the reasons when it did not and what it noticed of
    itself."""

    model_config = ConfigDict(frozen=True)

    phase: int
    arm: str
    level: int
    is_valid: bool
    reasons: tuple[str, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)


class RunRecord(BaseModel):
    """What `run.json` holds.

    `started_monotonic_seconds` is the zero of all times in the derived files; transcripts and server samples
    are stamped by the same clock of the same machine.
    """

    model_config = ConfigDict(frozen=True)

    schema_name: str = SCHEMA
    run_id: str
    state: State
    stage: str
    failure: str | None = None
    started_utc: str
    started_unix_seconds: float
    started_monotonic_seconds: float
    ended_unix_seconds: float | None = None
    command: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    host: dict[str, Any] = Field(default_factory=dict)
    policy: GatePolicy
    embedded: bool
    fault: str | None = None
    fault_seed: int | None = None
    deployments: tuple[dict[str, Any], ...] = ()
    model: str | None = None
    reference_available: bool = False
    workers: tuple[WorkerRecord, ...] = ()
    phases: tuple[PhaseRecord, ...] = ()
    client: tuple[ClientRecord, ...] = ()
    not_checked: tuple[str, ...] = ()


class RunFolder:
    """Paths of a run's files, and its record."""

    def __init__(self, path: Path, record: RunRecord) -> None:
        self.path = path
        self.record = record

    @classmethod
    def create(
        cls,
        path: Path | None,
        policy: GatePolicy,
        command: Sequence[str] = (),
        **facts: Any,
    ) -> RunFolder:
        """Make the folder (default `runs/<UTC time>-seed<seed>`) and write its first `run.json`.

        Raises RunFolderError when the path exists and is not an empty directory, or cannot be made.
        """
        now = datetime.now(UTC)
        made = new_folder(path, f"seed{policy.load.seed}", now)
        record = RunRecord(
            run_id=made.name,
            state=State.RUNNING,
            stage="starting",
            started_utc=now.isoformat(timespec="seconds"),
            started_unix_seconds=time.time(),
            started_monotonic_seconds=time.monotonic(),
            command=tuple(command),
            policy=policy,
            **facts,
        )
        folder = cls(made, record)
        folder.save()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Read an existing run. Raises RunFolderError when it is not one."""
        file = path / "run.json"
        try:
            content = file.read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunFolderError(f"`{path}` is not a run folder: cannot read `{file}`: {reason}") from error
        try:
            return cls(path, RunRecord.model_validate_json(content))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"])) or "content"
            raise RunFolderError(
                f"`{file}` was not written by this version of pdwatch: `{key}`: {first['msg']}"
            ) from error

    def update(self, **changes: Any) -> None:
        """Replace fields of the record and save it."""
        self.record = self.record.model_copy(update=changes)
        self.save()

    def save(self) -> None:
        """Write `run.json` as a whole."""
        content = orjson.dumps(self.record.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        write_bytes_atomically(self.path / "run.json", content + b"\n")

    @property
    def transcripts(self) -> Path:
        """Raw requests and streams, one zstd frame each, written by the load generator."""
        return self.path / "transcripts.jsonl.zst"

    @property
    def server_samples(self) -> Path:
        """Raw /metrics answers, one zstd frame each."""
        return self.path / "server.jsonl.zst"

    @property
    def reference_scores(self) -> Path:
        """What the reference said about each answer, one zstd frame each."""
        return self.path / "reference.jsonl.zst"

    @property
    def plan(self) -> Path:
        """The load generator's plan."""
        return self.path / "plan.json"

    @property
    def requests_table(self) -> Path:
        """One row per request, derived."""
        return self.path / "requests.parquet"

    @property
    def server_table(self) -> Path:
        """One row per metric sample, derived."""
        return self.path / "server.parquet"

    @property
    def verdict(self) -> Path:
        """The verdict, derived."""
        return self.path / "verdict.json"

    @property
    def junit(self) -> Path:
        """The verdict for CI systems, derived."""
        return self.path / "junit.xml"

    @property
    def report(self) -> Path:
        """The verdict for people, derived."""
        return self.path / "report.html"

    @property
    def logs(self) -> Path:
        """Logs of the processes of the run."""
        return self.path / "logs"
