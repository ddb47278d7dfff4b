"""All GPUs, read at each scrape into new families."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client import Metric

from ..definitions import Families
from ..field_errors import FieldErrors
from . import definitions as defined
from .activity import Activity, ActivityTracker
from .nvml import LOST, UNAVAILABLE, Device, Number, Nvml, NvmlError
from .processes import UnitsOfProcesses
from .readings import EVENT_REASONS, READINGS, STATIC_READINGS, WRAPPING
from .session import KnownGpu, Session
from .wraps import WrappingCounter
from .xids import XidWatcher

Found = TypeVar("Found")

_INVALID: Final = "invalid"


class GpuSource:
    """The GPU exporter's source of metrics. `units` groups processes; None leaves them out."""

    def __init__(
        self,
        nvml: Nvml,
        *,
        units: UnitsOfProcesses | None = None,
        watcher: XidWatcher | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.field_errors = FieldErrors()
        self.watcher = watcher or XidWatcher()
        self._session = Session(nvml, self.watcher, monotonic, self._forget_samples)
        self._units = units
        self._monotonic = monotonic
        self._trackers: dict[tuple[str, int | None], ActivityTracker] = {}
        self._wrapping: dict[tuple[str, str], WrappingCounter] = {}
        # by uuid; forgotten with the GPU's samples
        self._static: dict[str, dict[str, float]] = {}

    def collect(self) -> Sequence[Metric]:
        """Read all GPUs. Raises NvmlUnavailable when NVML does not answer."""
        families = Families(defined.DEFINITIONS)
        try:
            gpus = self._session.gpus()
            down = [gpu for gpu in gpus if not self._collect_gpu(gpu, families)]
        except NvmlError as error:
            # a driver that comes back counts from zero
            self._wrapping.clear()
            raise self._session.broken(error) from error
        if down:
            self._session.lost_some()
        else:
            self._session.all_well()
        self._collect_xids(gpus, families)
        return families.built()

    def close(self) -> None:
        """Stop the events and NVML."""
        self._session.stop()

    def _collect_gpu(self, gpu: KnownGpu, families: Families) -> bool:
        """Whether the GPU is up. Raises NvmlError when NVML itself is gone."""
        if gpu.identity is not None:
            identity = gpu.identity
            named = (identity.name, identity.pci_bus_id, identity.serial, identity.vbios_version)
            families.add(defined.INFO, 1, (*gpu.labels, *named, self._session.driver_version))
        reader = _Reader(self.field_errors)
        is_up = False
        if gpu.device is not None:
            reader.read(gpu.device, self._static.setdefault(gpu.labels[0], {}))
            is_up = reader.has_answers and not reader.is_lost
        families.add(defined.UP, float(is_up), gpu.labels)
        if gpu.device is None or not is_up:
            self._forget(gpu)
            return False
        _add(families, defined.FROM_READINGS, reader.numbers, gpu.labels)
        if (mask := reader.numbers.get("event_reasons")) is not None:
            for reason, bit in EVENT_REASONS.items():
                families.add(defined.THROTTLED, float(bool(int(mask) & bit)), (*gpu.labels, reason))
        self._collect_activity(gpu, gpu.device, families, reader)
        if reader.numbers.get("mig_mode"):
            self._collect_instances(gpu, gpu.device, families, reader)
        if self._units is not None:
            self._collect_processes(gpu, gpu.device, self._units, families, reader)
        return True

    def _collect_activity(self, gpu: KnownGpu, device: Device, families: Families, reader: _Reader) -> None:
        activity = self._activity(gpu, device, None, reader)
        self._collect_wrapping(gpu, families, reader, activity)
        if activity is not None:
            families.add(defined.ACTIVITY_WINDOW, activity.window_seconds, gpu.labels)
            _add(families, defined.FROM_ACTIVITY, activity.numbers, gpu.labels)

    def _collect_wrapping(self, gpu: KnownGpu, families: Families, reader: _Reader, activity: Activity | None) -> None:
        now = self._monotonic()
        rates = {} if activity is None else activity.numbers
        totals = {}
        for name in WRAPPING:
            reading = reader.numbers.get(name)
            if reading is not None:
                counter = self._wrapping.setdefault((gpu.labels[0], name), WrappingCounter())
                rate = rates.get(f"{name}_rate")
                totals[name] = counter.advance(reading, now, None if rate is None else rate * defined.MIB)
        _add(families, defined.FROM_WRAPPING, totals, gpu.labels)

    def _collect_instances(self, gpu: KnownGpu, device: Device, families: Families, reader: _Reader) -> None:
        # compute instances of one GPU instance share its memory: it is one series, not one each
        seen: set[int] = set()
        for instance in reader.attempt("instances", device.instances) or ():
            labels = (*gpu.labels, str(instance.gpu_instance))
            families.add(
                defined.INSTANCE_INFO, 1, (*labels, str(instance.compute_instance), instance.uuid, instance.name)
            )
            if instance.gpu_instance in seen:
                continue
            seen.add(instance.gpu_instance)
            if instance.memory is None:
                self.field_errors.note("instance_memory", "not_supported")
            else:
                families.add(defined.INSTANCE_MEMORY_TOTAL, instance.memory["total"], labels)
                families.add(defined.INSTANCE_MEMORY_USED, instance.memory["used"], labels)
            activity = self._activity(gpu, device, instance.gpu_instance, reader)
            if activity is not None:
                _add(families, defined.FROM_INSTANCE_ACTIVITY, activity.numbers, labels)

    def _collect_processes(
        self, gpu: KnownGpu, device: Device, units: UnitsOfProcesses, families: Families, reader: _Reader
    ) -> None:
        for use in units.group(reader.attempt("processes", device.processes) or ()):
            labels = (*gpu.labels, use.unit)
            families.add(defined.PROCESSES, use.processes, labels)
            if use.used_bytes is None:
                self.field_errors.note("process_memory", "no_data")
            else:
                families.add(defined.PROCESS_MEMORY, use.used_bytes, labels)

    def _collect_xids(self, gpus: Sequence[KnownGpu], families: Families) -> None:
        if self.watcher.error is not None:
            self.field_errors.note("xid_events", self.watcher.error.reason)
        indices = {gpu.labels[0]: gpu.labels[1] for gpu in gpus}
        for count in self.watcher.counts():
            labels = (count.uuid, indices.get(count.uuid, ""), count.xid)
            families.add(defined.XID_ERRORS, count.count, labels)
            families.add(defined.XID_LAST, count.last_unix_seconds, labels)

    def _activity(self, gpu: KnownGpu, device: Device, gpu_instance: int | None, reader: _Reader) -> Activity | None:
        key = (gpu.labels[0], gpu_instance)
        tracker = self._trackers.get(key)
        if tracker is None:
            tracker = self._trackers[key] = ActivityTracker(gpu_instance, self._monotonic)
        field = "activity" if gpu_instance is None else "instance_activity"
        activity = reader.attempt(field, lambda: tracker.read(device))
        if activity is not None:
            for name, reason in activity.missing.items():
                self.field_errors.note(f"{field}.{name}", reason)
        return activity

    def _forget_samples(self) -> None:
        # samples are memory of the NVML that made them
        self._trackers.clear()
        self._static.clear()

    def _forget(self, gpu: KnownGpu) -> None:
        # a sample from before a reset would make nonsense of the first window after it
        self._static.pop(gpu.labels[0], None)
        for key in [key for key in self._trackers if key[0] == gpu.labels[0]]:
            del self._trackers[key]
        for name in WRAPPING:
            self._wrapping.pop((gpu.labels[0], name), None)


class _Reader:
    """The numbers of one GPU at one moment. What is missing is noted; only the loss of NVML itself is raised."""

    def __init__(self, field_errors: FieldErrors) -> None:
        self._field_errors = field_errors
        self.numbers: dict[str, float] = {}
        self.is_lost = False
        self.has_answers = False

    def read(self, device: Device, static: dict[str, float]) -> None:
        """Read everything; `static` holds what was read before and need not be read again."""
        for name in READINGS:
            if name in static:
                self.numbers[name] = static[name]
                continue
            reading = self.attempt(name, lambda name=name: device.read(name))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            if self.is_lost:
                return
            if isinstance(reading, Mapping):
                for member, number in reading.items():
                    self._keep(f"{name}.{member}", number)
            elif reading is not None:
                self._keep(name, reading)
        for name, answer in (self.attempt("fields", device.fields) or {}).items():
            if not isinstance(answer, NvmlError):
                self._keep(name, answer)
            elif answer.code in UNAVAILABLE:
                raise answer
            else:
                self._field_errors.note(name, answer.reason)
        static |= {name: self.numbers[name] for name in STATIC_READINGS & self.numbers.keys()}
        if "power_average" not in self.numbers and "power_usage" in self.numbers:
            # the older name of the same average
            self.numbers["power_average"] = self.numbers["power_usage"]

    def attempt(self, field: str, call: Callable[[], Found]) -> Found | None:
        """What `call` gives; None, noted, when NVML does not give it."""
        try:
            found = call()
        except NvmlError as error:
            if error.code in UNAVAILABLE:
                raise
            self.is_lost = self.is_lost or error.code in LOST
            self._field_errors.note(field, error.reason)
            return None
        self.has_answers = True
        return found

    def _keep(self, name: str, number: Number) -> None:
        if math.isfinite(number) and number >= 0:
            self.numbers[name] = float(number)
        else:
            self._field_errors.note(name, _INVALID)


def _add(
    families: Families, sources: Iterable[defined.Source], numbers: Mapping[str, float], labels: tuple[str, ...]
) -> None:
    for source in sources:
        number = numbers.get(source.reading)
        if number is not None:
            families.add(source.definition, number * source.factor, (*labels, *source.labels))
