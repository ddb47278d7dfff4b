"""NVML itself, through nvidia-ml-py. Nothing here changes a setting of a GPU; a registration for events is ours alone.

The package is imported when NVML is started: without a driver, and without the package, only that fails.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from .nvml import Code, Device, Identity, Instance, Number, NvmlError, Process, Reading, XidEvent
from .readings import ACTIVITIES, FIELDS

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Owner = TypeVar("Owner", bound="_Bound")

# nvmlValueType_t by the member of the union that holds it
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_NOT_AVAILABLE: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_GPM_VERSION: Final = 1
_SLOWEST_STATE: Final = 15


def _translated(
    method: Callable[Concatenate[Owner, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """Errors of nvidia-ml-py become ours."""

    def call(self: Owner, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return method(self, *arguments, **named)
        except self.library.NVMLError as error:
            raise NvmlError(getattr(error, "value", Code.UNKNOWN)) from error

    return call


class _Bound:
    """Something that calls into the library."""

    def __init__(self, library: Any) -> None:
        self.library = library


class BoundNvml(_Bound):
    """The NVML of this machine."""

    def __init__(self) -> None:
        super().__init__(None)

    def start(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlError(Code.LIBRARY_NOT_FOUND) from error
        self.library = pynvml
        self._initialise()

    @_translated
    def _initialise(self) -> None:
        self.library.nvmlInit()

    @_translated
    def stop(self) -> None:
        self.library.nvmlShutdown()

    @_translated
    def driver_version(self) -> str:
        return str(self.library.nvmlSystemGetDriverVersion())

    @_translated
    def device_count(self) -> int:
        return int(self.library.nvmlDeviceGetCount())

    @_translated
    def device(self, index: int) -> BoundDevice:
        return BoundDevice(self.library, self.library.nvmlDeviceGetHandleByIndex(index))

    @_translated
    def open_xids(self, devices: Sequence[Device]) -> BoundXids:
        return BoundXids(self.library, [device for device in devices if isinstance(device, BoundDevice)])


class BoundDevice(_Bound):
    """One GPU by its handle."""

    def __init__(self, library: Any, handle: Any) -> None:
        super().__init__(library)
        self.handle = handle

    @_translated
    def identity(self) -> Identity:
        return Identity(
            uuid=str(self.library.nvmlDeviceGetUUID(self.handle)),
            name=self._text(self.library.nvmlDeviceGetName),
            pci_bus_id=self._text(lambda handle: self.library.nvmlDeviceGetPciInfo(handle).busId).lower(),
            serial=self._text(self.library.nvmlDeviceGetSerial),
            vbios_version=self._text(self.library.nvmlDeviceGetVbiosVersion),
        )

    @_translated
    def read(self, reading: str) -> Reading:
        return _READERS[reading](self.library, self.handle)

    @_translated
    def fields(self) -> Mapping[str, Number | NvmlError]:
        values = self.library.nvmlDeviceGetFieldValues(self.handle, [(field.number, field.scope) for field in FIELDS])
        return {field.name: _field(value) for field, value in zip(FIELDS, values, strict=True)}

    @_translated
    def activity_sample(self, gpu_instance: int | None = None) -> object:
        sample = _GpmSample(self.library)
        if gpu_instance is None:
            self.library.nvmlGpmSampleGet(self.handle, sample.pointer)
        else:
            self.library.nvmlGpmMigSampleGet(self.handle, gpu_instance, sample.pointer)
        return sample

    @_translated
    def activity(self, earlier: object, later: object) -> Mapping[str, Number | NvmlError]:
        assert isinstance(earlier, _GpmSample) and isinstance(later, _GpmSample), "samples of another device"
        request = self.library.c_nvmlGpmMetricsGet_t()
        request.version = _GPM_VERSION
        request.numMetrics = len(ACTIVITIES)
        request.sample1, request.sample2 = earlier.pointer, later.pointer
        for place, number in enumerate(ACTIVITIES.values()):
            request.metrics[place].metricId = number
        self.library.nvmlGpmMetricsGet(request)
        answers = (request.metrics[place] for place in range(len(ACTIVITIES)))
        return {
            name: float(answer.value) if answer.nvmlReturn == 0 else NvmlError(answer.nvmlReturn)
            for name, answer in zip(ACTIVITIES, answers, strict=True)
        }

    @_translated
    def processes(self) -> Sequence[Process]:
        return [
            Process(int(process.pid), None if process.usedGpuMemory is None else int(process.usedGpuMemory))
            for process in self.library.nvmlDeviceGetComputeRunningProcesses(self.handle)
        ]

    @_translated
    def instances(self) -> Sequence[Instance]:
        found = []
        for index in range(self.library.nvmlDeviceGetMaxMigDeviceCount(self.handle)):
            try:
                handle = self.library.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
            except self.library.NVMLError as error:
                # places without a device lie between those with one
                if error.value in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                    continue
                raise
            found.append(self._instance(handle))
        return found

    def _instance(self, handle: Any) -> Instance:
        try:
            memory = dict(_memory(self.library, handle))
        except (self.library.NVMLError, NvmlError):
            memory = None
        return Instance(
            uuid=str(self.library.nvmlDeviceGetUUID(handle)),
            name=str(self.library.nvmlDeviceGetName(handle)),
            gpu_instance=int(self.library.nvmlDeviceGetGpuInstanceId(handle)),
            compute_instance=int(self.library.nvmlDeviceGetComputeInstanceId(handle)),
            memory=memory,
        )

    def _text(self, call: Callable[[Any], Any]) -> str:
        """A text that a GPU need not have."""
        try:
            text = call(self.handle)
        except self.library.NVMLError:
            return ""
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


class BoundXids(_Bound):
    """An event set of NVML."""

    def __init__(self, library: Any, devices: Sequence[BoundDevice]) -> None:
        super().__init__(library)
        self._set = library.nvmlEventSetCreate()
        self._uuids: dict[int, str] = {}
        for device in devices:
            try:
                library.nvmlDeviceRegisterEvents(device.handle, library.nvmlEventTypeXidCriticalError, self._set)
                self._uuids[_address(device.handle)] = str(library.nvmlDeviceGetUUID(device.handle))
            except library.NVMLError:
                # a lost GPU, or one without events, must not cost the others theirs
                continue
        if devices and not self._uuids:
            self.close()
            raise NvmlError(Code.NOT_SUPPORTED)

    @_translated
    def wait(self, seconds: float) -> XidEvent | None:
        try:
            event = self.library.nvmlEventSetWait_v2(self._set, int(seconds * 1e3))
        except self.library.NVMLError as error:
            if error.value == Code.TIMEOUT:
                return None
            raise
        return XidEvent(self._uuids.get(_address(event.device), ""), int(event.eventData))

    @_translated
    def close(self) -> None:
        self.library.nvmlEventSetFree(self._set)


class _GpmSample:
    """A GPM sample, freed with its last reference."""

    def __init__(self, library: Any) -> None:
        self._free = library.nvmlGpmSampleFree
        self._error = library.NVMLError
        self.pointer = library.nvmlGpmSampleAlloc()

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            try:
                self._free(self.pointer)
            except self._error:
                # NVML was stopped meanwhile and has freed it itself
                pass


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _field(value: Any) -> Number | NvmlError:
    if value.nvmlReturn != 0:
        return NvmlError(value.nvmlReturn)
    if not 0 <= value.valueType < len(_MEMBERS):
        return NvmlError(Code.ARGUMENT_VERSION_MISMATCH)
    number: Number = getattr(value.value, _MEMBERS[value.valueType])
    return NvmlError(Code.NO_DATA) if number in _NOT_AVAILABLE else number


def _known(number: int) -> int:
    """A number that NVML did not mark as unavailable. Raises NvmlError."""
    if number in _NOT_AVAILABLE:
        raise NvmlError(Code.NO_DATA)
    return int(number)


def _memory(library: Any, handle: Any) -> dict[str, int]:
    memory = library.nvmlDeviceGetMemoryInfo(handle, library.nvmlMemory_v2)
    return {name: _known(getattr(memory, name)) for name in ("total", "used", "reserved")}


def _utilization(library: Any, handle: Any) -> dict[str, int]:
    rates = library.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu": _known(rates.gpu), "memory": _known(rates.memory)}


def _event_reasons(library: Any, handle: Any) -> int:
    try:
        return int(library.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except library.NVMLError_FunctionNotFound:
        # the name before driver 535
        return int(library.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _performance_state(library: Any, handle: Any) -> int:
    state = int(library.nvmlDeviceGetPerformanceState(handle))
    if state > _SLOWEST_STATE:
        # 32 stands for unknown
        raise NvmlError(Code.NO_DATA)
    return state


def _remapped_rows(library: Any, handle: Any) -> dict[str, int]:
    names = ("correctable", "uncorrectable", "pending", "failure")
    return dict(zip(names, map(int, library.nvmlDeviceGetRemappedRows(handle)), strict=True))


def _sram_ecc(library: Any, handle: Any) -> dict[str, int]:
    status = library.c_nvmlEccSramErrorStatus_v1_t()
    library.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    members = {
        "corrected_volatile": "volatileCor",
        "parity_volatile": "volatileUncParity",
        "secded_volatile": "volatileUncSecDed",
        "corrected_aggregate": "aggregateCor",
        "parity_aggregate": "aggregateUncParity",
        "secded_aggregate": "aggregateUncSecDed",
        "threshold_exceeded": "bThresholdExceeded",
    }
    return {name: _known(getattr(status, member)) for name, member in members.items()}


_READERS: Final[Mapping[str, Callable[[Any, Any], Reading]]] = {
    "temperature": lambda library, handle: int(library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)),
    "power_usage": lambda library, handle: _known(library.nvmlDeviceGetPowerUsage(handle)),
    "power_limit": lambda library, handle: _known(library.nvmlDeviceGetEnforcedPowerLimit(handle)),
    "memory": _memory,
    "utilization": _utilization,
    "clock_sm": lambda library, handle: _known(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)),
    "clock_memory": lambda library, handle: _known(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM)),
    "clock_sm_max": lambda library, handle: _known(library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM)),
    "clock_memory_max": lambda library, handle: _known(
        library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_MEM)
    ),
    "performance_state": _performance_state,
    "event_reasons": _event_reasons,
    "remapped_rows": _remapped_rows,
    "sram_ecc": _sram_ecc,
    "pcie_generation": lambda library, handle: _known(library.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
    "pcie_width": lambda library, handle: _known(library.nvmlDeviceGetCurrPcieLinkWidth(handle)),
    "mig_mode": lambda library, handle: int(library.nvmlDeviceGetMigMode(handle)[0]),
}
