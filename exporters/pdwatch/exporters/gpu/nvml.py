"""The part of NVML this exporter uses, as a protocol of our own: what stands in for a driver implements this, no more.

Plain numbers and strings in NVML's own units come out of it; an error code comes out as NvmlError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol


class Code(IntEnum):
    """nvmlReturn_t, of which our readers act on these."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


# one GPU is gone; the others may be well
LOST: Final = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND})
# NVML itself is gone, for every GPU
UNAVAILABLE: Final = frozenset(
    {Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND, Code.LIB_RM_VERSION_MISMATCH}
)


class NvmlError(Exception):
    """NVML answered with an error. `reason` is a label value: the code's name, or `nvml_<code>` for another one."""

    def __init__(self, code: int) -> None:
        self.code = int(code)
        self.reason = Code(code).name.lower() if code in Code._value2member_map_ else f"nvml_{code}"
        super().__init__(f"NVML: {self.reason.replace('_', ' ')} ({self.code})")


Number = int | float
Reading = Number | Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change while a driver runs. An empty string is what NVML did not tell."""

    uuid: str
    name: str
    pci_bus_id: str
    serial: str
    vbios_version: str


@dataclass(frozen=True, slots=True)
class Process:
    """A compute process. `used_bytes` is None where NVML does not tell; `pid` is the host's."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Instance:
    """One MIG device: its GPU instance and compute instance, and its memory in bytes, None where not told."""

    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical XID. `uuid` is empty when the event does not say which GPU."""

    uuid: str
    xid: int


class Device(Protocol):
    """One GPU. Every method raises NvmlError."""

    def identity(self) -> Identity: ...

    def read(self, reading: str) -> Reading:
        """One of `readings.READINGS`."""

    def fields(self) -> Mapping[str, Number | NvmlError]:
        """All of `readings.FIELDS`, asked in one call; each has an error of its own."""

    def activity_sample(self, gpu_instance: int | None = None) -> object:
        """A GPM sample of the GPU or of one of its MIG instances, to be handed to `activity`."""

    def activity(self, earlier: object, later: object) -> Mapping[str, Number | NvmlError]:
        """All of `readings.ACTIVITIES` between two samples."""

    def processes(self) -> Sequence[Process]: ...

    def instances(self) -> Sequence[Instance]:
        """The MIG devices; none when MIG is off."""


class XidSource(Protocol):
    """A registration for XID events, valid until NVML stops."""

    def wait(self, seconds: float) -> XidEvent | None:
        """The next event, or None after `seconds`. Raises NvmlError."""

    def close(self) -> None: ...


class Nvml(Protocol):
    """The library. Every method raises NvmlError."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def driver_version(self) -> str: ...

    def device_count(self) -> int: ...

    def device(self, index: int) -> Device: ...

    def open_xids(self, devices: Sequence[Device]) -> XidSource:
        """Register for the XIDs of these devices; those that support none are left out."""
