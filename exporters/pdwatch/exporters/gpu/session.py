"""NVML started, its GPUs known by UUID, and started again when it or a GPU is gone.

A driver that restarts leaves every handle dead, and a GPU that was reset is only seen by an NVML started afterwards.
So NVML is started again after such failures, later each time, and GPUs that were seen once are remembered: one that
does not come back is reported as lost, not left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import NvmlUnavailable
from .nvml import UNAVAILABLE, Code, Device, Identity, Nvml, NvmlError
from .xids import XidWatcher

# the first wait after a failure and the longest one
FIRST_BACK_OFF_SECONDS: Final = 1.0
LONGEST_BACK_OFF_SECONDS: Final = 60.0
# while other GPUs are well, each start costs them their samples: a GPU that stays away is looked for more rarely
LONGEST_FOR_LOST_SECONDS: Final = 600.0

_REMEDIES: Final[Mapping[int, str]] = {
    Code.LIBRARY_NOT_FOUND: "install NVIDIA's driver and the package nvidia-ml-py, or try --demo",
    Code.DRIVER_NOT_LOADED: "load the driver (nvidia-smi says more)",
    Code.LIB_RM_VERSION_MISMATCH: "the driver was updated: reload it or reboot",
    Code.NO_PERMISSION: "allow this user to open /dev/nvidiactl",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU seen in this process. `device` is None while it is lost; `identity` is None if it was never read."""

    index: int
    identity: Identity | None
    device: Device | None

    @property
    def labels(self) -> tuple[str, str]:
        """`uuid` and `index`. A GPU that was lost before it could be read has no uuid."""
        return ("" if self.identity is None else self.identity.uuid, str(self.index))


class Session:
    """The GPUs of an NVML that is started, and started again when it must be."""

    def __init__(
        self,
        nvml: Nvml,
        watcher: XidWatcher,
        monotonic: Callable[[], float] = time.monotonic,
        before_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_stop` lets go of what belongs to the NVML that is about to be stopped."""
        self._nvml = nvml
        self._watcher = watcher
        self._monotonic = monotonic
        self._before_stop = before_stop
        self._is_started = False
        self._gpus: tuple[KnownGpu, ...] = ()
        self._seen: dict[str, KnownGpu] = {}
        self._again_at: float | None = None
        self._back_off_seconds = FIRST_BACK_OFF_SECONDS
        self._failure: NvmlError | None = None
        self.driver_version = ""

    def gpus(self) -> tuple[KnownGpu, ...]:
        """All GPUs, lost ones included. Raises NvmlUnavailable, at once while the next attempt is not due."""
        now = self._monotonic()
        if self._again_at is not None and now >= self._again_at:
            self.stop()
        if not self._is_started:
            if self._failure is not None and self._again_at is not None and now < self._again_at:
                raise self._unavailable(self._failure, self._again_at - now)
            self._start()
        return self._gpus

    def broken(self, error: NvmlError) -> NvmlUnavailable:
        """NVML itself failed during a collection: what to raise. It is started again with the next collection."""
        self.stop()
        self._plan(error)
        self._again_at = self._monotonic()
        return self._unavailable(error, 0.0)

    def lost_some(self) -> None:
        """A GPU did not answer; NVML is to be started again, which alone can bring it back."""
        if self._again_at is None:
            self._again_at = self._monotonic() + self._back_off_seconds
            self._back_off_seconds = min(2 * self._back_off_seconds, LONGEST_FOR_LOST_SECONDS)

    def all_well(self) -> None:
        """Every GPU answered."""
        self._again_at = None
        self._back_off_seconds = FIRST_BACK_OFF_SECONDS

    def stop(self) -> None:
        """Stop the events and NVML."""
        self._watcher.stop()
        self._before_stop()
        if self._is_started:
            self._is_started = False
            try:
                self._nvml.stop()
            except NvmlError as error:
                # it is gone already, which is why we are here
                _log.debug("NVML did not stop: %s", error)

    def _start(self) -> None:
        self._again_at = None
        try:
            self._nvml.start()
        except NvmlError as error:
            raise self._plan(error) from error
        self._is_started = True
        try:
            self.driver_version = self._nvml.driver_version()
            found = [self._find(index) for index in range(self._nvml.device_count())]
        except NvmlError as error:
            self.stop()
            raise self._plan(error) from error
        self._failure = None
        present = {gpu.identity.uuid for gpu in found if gpu.identity is not None}
        missing = [gpu for uuid, gpu in self._seen.items() if uuid not in present]
        # one whose handle cannot be had is told by the absence of its uuid, once that is known
        found = [gpu for gpu in found if gpu.identity is not None or gpu.index not in {lost.index for lost in missing}]
        for gpu in missing:
            _log.warning("GPU %s (%s) is lost", gpu.index, gpu.labels[0])
        self._gpus = tuple(sorted((*found, *missing), key=lambda gpu: gpu.index))
        self._watcher.start(self._nvml, [gpu.device for gpu in found if gpu.device is not None])

    def _find(self, index: int) -> KnownGpu:
        try:
            device = self._nvml.device(index)
            gpu = KnownGpu(index, device.identity(), device)
        except NvmlError as error:
            if error.code in UNAVAILABLE:
                raise
            _log.warning("GPU %d: %s", index, error)
            return KnownGpu(index, None, None)
        assert gpu.identity is not None
        self._seen[gpu.identity.uuid] = KnownGpu(index, gpu.identity, None)
        return gpu

    def _plan(self, error: NvmlError) -> NvmlUnavailable:
        """Wait longer before the next attempt."""
        wait = self._back_off_seconds
        self._failure = error
        self._again_at = self._monotonic() + wait
        self._back_off_seconds = min(2 * wait, LONGEST_BACK_OFF_SECONDS)
        return self._unavailable(error, wait)

    def _unavailable(self, error: NvmlError, wait_seconds: float) -> NvmlUnavailable:
        remedy = _REMEDIES.get(error.code, "look at nvidia-smi and dmesg")
        again = f"tried again in {wait_seconds:.3g} s" if wait_seconds else "tried again at once"
        return NvmlUnavailable(f"{error}: {remedy}; {again}")
