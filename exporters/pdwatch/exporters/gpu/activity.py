"""GPM samples between scrapes: activity is a mean over the time since an earlier sample.

Two scrapers, or a check by hand between two scrapes, must not shrink that time to nothing: of the two samples that
are kept, the later one is used when it is old enough and else the earlier one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .nvml import Device, Number, NvmlError

# shorter windows give noise, and below the hardware's own period nothing
SHORTEST_WINDOW_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Activity:
    """Means over `window_seconds`, in percent and MiB/s; the reason by name where GPM gave no number."""

    window_seconds: float
    numbers: Mapping[str, float]
    missing: Mapping[str, str]


class ActivityTracker:
    """The samples of one GPU or one of its MIG instances."""

    def __init__(self, gpu_instance: int | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._gpu_instance = gpu_instance
        self._monotonic = monotonic
        self._samples: list[tuple[float, object]] = []

    def read(self, device: Device) -> Activity | None:
        """The activity up to now; None as long as there is no sample old enough. Raises NvmlError."""
        now, sample = self._monotonic(), device.activity_sample(self._gpu_instance)
        earlier = next((held for held in reversed(self._samples) if now - held[0] >= SHORTEST_WINDOW_SECONDS), None)
        if not self._samples or now - self._samples[-1][0] >= SHORTEST_WINDOW_SECONDS:
            self._samples = [*self._samples[-1:], (now, sample)]
        if earlier is None:
            return None
        return _sorted(now - earlier[0], device.activity(earlier[1], sample))


def _sorted(window_seconds: float, answers: Mapping[str, Number | NvmlError]) -> Activity:
    numbers: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, answer in answers.items():
        if isinstance(answer, NvmlError):
            missing[name] = answer.reason
        elif math.isfinite(answer) and answer >= 0:
            numbers[name] = float(answer)
        else:
            missing[name] = "invalid"
    return Activity(window_seconds, numbers, missing)
