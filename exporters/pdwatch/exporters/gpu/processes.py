"""Compute processes by systemd unit, read from /proc/<pid>/cgroup.

A pid says nothing an hour later and makes a new series each time; the unit is what the on-call restarts. Only units
that were asked for get a series, all others are summed, so that the number of series stays bounded.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .nvml import Process

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
DEFAULT_UNITS: Final = ("*.service",)

_UNIT = re.compile(r"^[\w:.\\@-]+\.(service|scope)$", re.ASCII)
_LARGEST_BYTES: Final = 65536
_LONGEST_UNIT: Final = 255


@dataclass(frozen=True, slots=True)
class UnitUse:
    """The processes of one unit on one GPU. `used_bytes` is None when NVML does not tell it for one of them."""

    unit: str
    processes: int
    used_bytes: int | None


def unit_of(cgroup: str) -> str | None:
    """The innermost systemd service or scope in the text of /proc/<pid>/cgroup; None if there is none.

    Both versions of cgroups are read, the unified line first. A user's service lies below the service that runs his
    manager, and a container's scope below its runtime's, hence the innermost.
    """
    lines = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    paths = [path for _, controllers, path in lines if controllers == ""]
    paths += [path for _, controllers, path in lines if controllers == "name=systemd"]
    for path in paths:
        for part in reversed(path.split("/")):
            if len(part) <= _LONGEST_UNIT and _UNIT.match(part):
                return part
    return None


class UnitsOfProcesses:
    """Groups processes by unit; `units` are patterns of units that get a series of their own."""

    def __init__(self, units: Sequence[str] = DEFAULT_UNITS, proc: Path = Path("/proc")) -> None:
        self._units = tuple(units)
        self._proc = proc

    def group(self, processes: Iterable[Process]) -> list[UnitUse]:
        """Processes by unit, sorted by it."""
        found: dict[str, list[Process]] = {}
        for process in processes:
            found.setdefault(self._label(process.pid), []).append(process)
        return [UnitUse(unit, len(members), _sum(members)) for unit, members in sorted(found.items())]

    def _label(self, pid: int) -> str:
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                text = file.read(_LARGEST_BYTES).decode(errors="replace")
        except OSError:
            # ended meanwhile, or the pid is one of another namespace
            return UNKNOWN
        unit = unit_of(text)
        if unit is None:
            return OTHER
        return unit if any(fnmatch.fnmatchcase(unit, pattern) for pattern in self._units) else OTHER


def _sum(processes: Sequence[Process]) -> int | None:
    used = [process.used_bytes for process in processes]
    return None if None in used else sum(filter(None, used))
