"""GPUs through NVML: `pdwatch export gpu`."""

from __future__ import annotations

from .binding import BoundNvml
from .collector import GpuSource
from .definitions import DEFINITIONS
from .nvml import Nvml, NvmlError
from .processes import DEFAULT_UNITS, UnitsOfProcesses
from .recording import Recording, read_recording
from .replay import DEMO_GPUS, ReplayNvml, demo_recording, multiplied

__all__ = [
    "DEFAULT_UNITS",
    "DEFINITIONS",
    "DEMO_GPUS",
    "BoundNvml",
    "GpuSource",
    "Nvml",
    "NvmlError",
    "Recording",
    "ReplayNvml",
    "UnitsOfProcesses",
    "demo_recording",
    "multiplied",
    "read_recording",
]
