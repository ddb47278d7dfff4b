"""An NVML that plays recordings: it drives `--demo` and the tests, with the failures of real machines on request.

When a recording ends it begins again, and its counters go on where they were, as a driver's do.
"""

from __future__ import annotations

import bisect
import hashlib
import queue
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar

from .nvml import Code, Device, Identity, Instance, Number, NvmlError, Process, Reading, XidEvent
from .readings import COUNTERS, WRAPPING
from .recording import Answer, FieldAnswer, RecordedDevice, RecordedError, RecordedFrame, Recording, read_recording

Found = TypeVar("Found")

DEMO_GPUS: Final = 8
# between neighbours in a machine made of one recorded GPU, so that they are not alike at any moment
_PHASE_SECONDS: Final = 1.7
_WRAPS_AT: Final = 1 << 32


def demo_recording() -> Recording:
    """The H200 that travels with the package."""
    with resources.as_file(resources.files(__package__) / "recordings" / "h200.json.gz") as path:
        return read_recording(Path(path))


def multiplied(recording: Recording, gpus: int = DEMO_GPUS) -> Recording:
    """A machine of `gpus` GPUs, each the first of `recording` under an identity of its own."""
    first = recording.devices[0]
    devices = []
    for index in range(gpus):
        name = uuid.UUID(bytes=hashlib.sha256(f"{first.identity.uuid}/{index}".encode()).digest()[:16])
        changes = {"uuid": f"GPU-{name}", "pci_bus_id": f"00000000:{index + 1:02x}:00.0", "serial": f"{index:013d}"}
        devices.append(first.model_copy(update={"identity": first.identity.model_copy(update=changes)}))
    return recording.model_copy(update={"devices": tuple(devices)})


class ReplayNvml:
    """An NVML over a recording. `clock` gives seconds; failures are switched on by the methods from `lose` on."""

    def __init__(self, recording: Recording, clock: Callable[[], float] = time.monotonic) -> None:
        self._recording = recording
        self._clock = clock
        self._origin = clock()
        self._devices = [ReplayDevice(self, index, device) for index, device in enumerate(recording.devices)]
        self._unavailable: Code | None = None
        self._is_started = False
        self._events: queue.SimpleQueue[XidEvent | NvmlError] = queue.SimpleQueue()
        self.starts = 0
        self.calls = 0

    def start(self) -> None:
        self._check()
        self._is_started = True
        self.starts += 1

    def stop(self) -> None:
        self._require_started()
        self._is_started = False

    def driver_version(self) -> str:
        self._require_started()
        return self._recording.driver_version

    def device_count(self) -> int:
        self._require_started()
        return len(self._devices)

    def device(self, index: int) -> ReplayDevice:
        self._require_started()
        device = self._devices[index]
        if device.lost is not None:
            raise NvmlError(device.lost)
        return device

    def open_xids(self, devices: Sequence[Device]) -> ReplayXids:
        self._require_started()
        return ReplayXids(self, self._events)

    def lose(self, index: int, code: Code = Code.GPU_IS_LOST) -> None:
        """GPU `index` falls off the bus."""
        self._devices[index].lost = code

    def find(self, index: int) -> None:
        """GPU `index` is back."""
        self._devices[index].lost = None

    def fail(self, index: int, reading: str, code: int) -> None:
        """`reading`, a field, an activity or a method's name, fails with `code` on GPU `index` from now on."""
        self._devices[index].failures[reading] = code

    def heal(self, index: int) -> None:
        """No reading of GPU `index` fails any more."""
        self._devices[index].failures.clear()

    def unload(self, code: Code = Code.DRIVER_NOT_LOADED) -> None:
        """The driver goes away, and with it every handle."""
        self._unavailable = code

    def load(self) -> None:
        """The driver is back, after a restart: its counters begin at zero and it must be started again."""
        self._unavailable = None
        self._is_started = False
        for device in self._devices:
            device.reset_counters()

    def raise_xid(self, index: int, xid: int) -> None:
        """GPU `index` reports an XID."""
        self._events.put(XidEvent(self._recording.devices[index].identity.uuid, xid))

    def raise_event_error(self, code: Code) -> None:
        """The wait for events fails once."""
        self._events.put(NvmlError(code))

    def seconds(self) -> float:
        """Seconds since this NVML was made."""
        return self._clock() - self._origin

    def _check(self) -> None:
        self.calls += 1
        if self._unavailable is not None:
            raise NvmlError(self._unavailable)

    def _require_started(self) -> None:
        self._check()
        if not self._is_started:
            raise NvmlError(Code.UNINITIALIZED)


class ReplayDevice:
    """One GPU of a recording."""

    def __init__(self, nvml: ReplayNvml, index: int, recorded: RecordedDevice) -> None:
        self._nvml = nvml
        self._recorded = recorded
        self._times = [frame.seconds for frame in recorded.frames]
        # one more step after the last frame, as long as the mean one
        self._period = self._times[-1] + (self._times[-1] / (len(self._times) - 1) if len(self._times) > 1 else 1.0)
        self._offset = index * _PHASE_SECONDS
        self._gains = _gains(recorded.frames)
        self._base: dict[str, Number] = {}
        self.lost: Code | None = None
        self.failures: dict[str, int] = {}

    def identity(self) -> Identity:
        self._require("identity")
        return Identity(**self._recorded.identity.model_dump())

    def read(self, reading: str) -> Reading:
        self._require(reading)
        frame, _ = self._now()
        return _answered(frame.readings.get(reading, RecordedError(error=Code.NOT_SUPPORTED)))

    def fields(self) -> Mapping[str, Number | NvmlError]:
        self._require("fields")
        frame, loops = self._now()
        return {
            name: self._failing(name, self._counted(name, value, loops)) for name, value in _all(frame.fields).items()
        }

    def activity_sample(self, gpu_instance: int | None = None) -> object:
        self._require("activity_sample")
        return gpu_instance

    def activity(self, earlier: object, later: object) -> Mapping[str, Number | NvmlError]:
        self._require("activity")
        frame, _ = self._now()
        if later is None:
            # the first frame of a recording has no frame before it, but in a replay it has
            answers = _all(frame.activity) or _all(self._recorded.frames[-1].activity)
        else:
            instances = {instance.gpu_instance: instance for instance in _all(frame.instances)}
            answers = _all(instances[int(str(later))].activity)
        return {name: self._failing(name, _value(value)) for name, value in answers.items()}

    def processes(self) -> Sequence[Process]:
        self._require("processes")
        frame, _ = self._now()
        return [Process(process.pid, process.used_bytes) for process in _all(frame.processes)]

    def instances(self) -> Sequence[Instance]:
        self._require("instances")
        frame, _ = self._now()
        return [Instance(**instance.model_dump(exclude={"activity"})) for instance in _all(frame.instances)]

    def reset_counters(self) -> None:
        """Every counter is zero now and counts on."""
        frame, loops = self._now()
        if not isinstance(frame.fields, RecordedError):
            for name in COUNTERS & frame.fields.keys():
                value = self._counted(name, frame.fields[name], loops)
                if not isinstance(value, NvmlError):
                    self._base[name] = self._base.get(name, 0) + value

    def _require(self, reading: str) -> None:
        self._nvml._require_started()
        if self.lost is not None:
            raise NvmlError(self.lost)
        if reading in self.failures:
            raise NvmlError(self.failures[reading])

    def _failing(self, name: str, value: Number | NvmlError) -> Number | NvmlError:
        return NvmlError(self.failures[name]) if name in self.failures else value

    def _now(self) -> tuple[RecordedFrame, int]:
        """The frame of this moment, and how often the recording has been played to its end."""
        loops, seconds = divmod(self._nvml.seconds() + self._offset, self._period)
        place = bisect.bisect_right(self._times, seconds) - 1
        return self._recorded.frames[max(place, 0)], int(loops)

    def _counted(self, name: str, value: FieldAnswer, loops: int) -> Number | NvmlError:
        number = _value(value)
        if name not in COUNTERS or isinstance(number, NvmlError):
            return number
        counted = number + loops * self._gains.get(name, 0) - self._base.get(name, 0)
        return counted % _WRAPS_AT if name in WRAPPING else counted


class ReplayXids:
    """Events as `raise_xid` puts them."""

    def __init__(self, nvml: ReplayNvml, events: queue.SimpleQueue[XidEvent | NvmlError]) -> None:
        self._nvml = nvml
        self._events = events

    def wait(self, seconds: float) -> XidEvent | None:
        self._nvml._require_started()
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(event, NvmlError):
            raise event
        return event

    def close(self) -> None:
        """Nothing is held."""


def _gains(frames: Sequence[RecordedFrame]) -> dict[str, Number]:
    """What each counter gains in one play."""
    first, last = frames[0].fields, frames[-1].fields
    if isinstance(first, RecordedError) or isinstance(last, RecordedError):
        return {}
    gains = {}
    for name in COUNTERS & first.keys() & last.keys():
        before, after = _value(first[name]), _value(last[name])
        if not isinstance(before, NvmlError) and not isinstance(after, NvmlError):
            gains[name] = (after - before) % _WRAPS_AT if name in WRAPPING else after - before
    return gains


def _value(answer: FieldAnswer) -> Number | NvmlError:
    return NvmlError(answer.error) if isinstance(answer, RecordedError) else answer


def _answered(answer: Answer) -> Reading:
    if isinstance(answer, RecordedError):
        raise NvmlError(answer.error)
    return answer


def _all(answer: Found | RecordedError) -> Found:
    if isinstance(answer, RecordedError):
        raise NvmlError(answer.error)
    return answer
