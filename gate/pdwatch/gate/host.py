"""Facts about the machine and the software, for `run.json`. Nothing from the environment is recorded."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "pdwatch",
    "torch",
    "triton",
    "numpy",
    "locust",
    "gevent",
    "httpx",
    "sglang-router",
    "sglang",
    "pydantic",
    "pyarrow",
)


def software_versions() -> dict[str, str]:
    """Versions of Python and of the packages that take part in a run; a package that is absent is left out."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def host_facts() -> dict[str, Any]:
    """Processor, memory and kernel of this machine, and how busy it was when asked."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average_1_minute": os.getloadavg()[0],
    }


def _processor_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
