"""Recordings of NVML: what a GPU answered, moment by moment, as JSON."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import RecordingInvalid
from .nvml import Number

_LARGEST_BYTES: Final = 64 * 2**20


class _Recorded(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordedError(_Recorded):
    """NVML answered with this code."""

    error: int


# an error looks like a mapping of numbers too: it is tried first
_in_order: Final = Field(union_mode="left_to_right")
Answer = Annotated[RecordedError | Number | dict[str, Number], _in_order]
FieldAnswer = Annotated[RecordedError | Number, _in_order]
Answers = Annotated[RecordedError | dict[str, FieldAnswer], _in_order]


class RecordedProcess(_Recorded):
    """A compute process."""

    pid: int
    used_bytes: int | None


class RecordedInstance(_Recorded):
    """A MIG device; `activity` is what GPM gave for its GPU instance."""

    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory: dict[str, int] | None
    activity: Answers


class RecordedFrame(_Recorded):
    """All answers of one GPU at one moment. `activity` is over the time since the frame before."""

    seconds: Annotated[float, Field(ge=0)]
    phase: str
    readings: dict[str, Answer]
    fields: Answers
    activity: Answers
    processes: tuple[RecordedProcess, ...] | RecordedError
    instances: tuple[RecordedInstance, ...] | RecordedError


class RecordedIdentity(_Recorded):
    """What does not change."""

    uuid: str
    name: str
    pci_bus_id: str
    serial: str
    vbios_version: str


class RecordedDevice(_Recorded):
    """One GPU over time."""

    identity: RecordedIdentity
    frames: Annotated[tuple[RecordedFrame, ...], Field(min_length=1)]


class Recording(_Recorded):
    """GPUs of one machine. `source` says how it came about: recorded where, or made by hand from what."""

    format: Literal[1] = 1
    source: str
    driver_version: str
    devices: Annotated[tuple[RecordedDevice, ...], Field(min_length=1)]


def read_recording(path: Path) -> Recording:
    """Read a recording, gzipped when its name ends in `.gz`. Raises RecordingInvalid."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingInvalid(f"the recording {path} cannot be read: {error}") from error
    if len(text) > _LARGEST_BYTES:
        raise RecordingInvalid(f"the recording {path} has more than {_LARGEST_BYTES >> 20} MiB")
    try:
        return Recording.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordingInvalid(f"{path} is no recording of NVML: {first['msg']} at {place}") from error


def write_recording(recording: Recording, path: Path) -> None:
    """Write a recording, gzipped when its name ends in `.gz`."""
    text = recording.model_dump_json().encode()
    # without the time of day, so that the same recording gives the same file
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
