"""The adapter to nvidia-ml-py: against the package itself where no driver is needed, else against a library of ours."""

from __future__ import annotations

import ast
import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdwatch.exporters.gpu import binding
from pdwatch.exporters.gpu.binding import BoundDevice, BoundNvml, BoundXids
from pdwatch.exporters.gpu.nvml import Code, NvmlError, Process, XidEvent
from pdwatch.exporters.gpu.readings import ACTIVITIES, ALL_LINKS, EVENT_REASONS, FIELDS, READINGS

pynvml = pytest.importorskip("pynvml")
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF


class Library:
    """What nvidia-ml-py is to the adapter: functions by name, its errors, its structures."""

    NVMLError = pynvml.NVMLError

    def __init__(self, **functions: Any) -> None:
        self.__dict__ |= functions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and not name.startswith(("nvmlMemory", "nvmlEventType")):
            return raising(Code.NOT_SUPPORTED)
        return getattr(pynvml, name)


def raising(code: int) -> Any:
    def call(*_: object) -> None:
        raise pynvml.NVMLError(code)

    return call


def test_everything_that_is_called_exists() -> None:
    tree = ast.parse(Path(binding.__file__).read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id == "library")
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "library")
        )
    }
    assert len(used) > 30
    assert not [name for name in used if not hasattr(pynvml, name)]


def test_numbers_are_those_of_the_header() -> None:
    fields = {field.name: field.number for field in FIELDS}
    assert fields["energy"] == pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
    assert fields["throttled_power_brake"] == pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    assert fields["pcie_rx"] == pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    assert fields["nvlink_tx"] == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    assert fields["recovery_action"] == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    assert fields["power_instant"] == pynvml.NVML_FI_DEV_POWER_INSTANT
    assert ACTIVITIES["dram"] == pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
    assert ACTIVITIES["tensor"] == pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    assert ACTIVITIES["nvlink_rx_rate"] == pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC
    assert EVENT_REASONS["power_brake"] == pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
    assert {code.name: code.value for code in Code} == {
        code.name: getattr(pynvml, f"NVML_ERROR_{code.name}") for code in Code
    }
    assert set(READINGS) == set(binding._READERS)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_without_a_driver_only_the_start_fails() -> None:
    nvml = BoundNvml()
    with pytest.raises(NvmlError) as raised:
        nvml.start()
    assert raised.value.code in (Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED)


def field_value(kind: int, member: str, value: float, code: int = 0) -> Any:
    found = pynvml.c_nvmlFieldValue_t()
    found.valueType, found.nvmlReturn = kind, code
    setattr(found.value, member, value)
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (field_value(0, "dVal", 1.5), 1.5),
        (field_value(1, "uiVal", 7), 7),
        (field_value(3, "ullVal", 2**40), 2**40),
        (field_value(5, "siVal", -3), -3),
        (field_value(3, "ullVal", NOT_AVAILABLE), Code.NO_DATA),
        (field_value(3, "ullVal", 5, code=3), Code.NOT_SUPPORTED),
        (field_value(99, "ullVal", 5), Code.ARGUMENT_VERSION_MISMATCH),
    ],
)
def test_a_field_is_read_by_its_type(value: Any, expected: object) -> None:
    answer = binding._field(value)
    assert (answer.code if isinstance(answer, NvmlError) else answer) == expected


def test_fields_are_asked_in_one_call() -> None:
    asked = []

    def values(handle: object, fields: list[tuple[int, int]]) -> list[Any]:
        asked.append(fields)
        return [field_value(1, "uiVal", number) for number, _ in fields]

    answers = BoundDevice(Library(nvmlDeviceGetFieldValues=values), None).fields()
    assert answers["energy"] == 83
    (fields,) = asked
    assert (138, ALL_LINKS) in fields and (83, 0) in fields


@pytest.mark.parametrize("reading", READINGS)
def test_errors_become_ours(reading: str) -> None:
    with pytest.raises(NvmlError) as raised:
        BoundDevice(Library(), None).read(reading)
    assert (raised.value.code, raised.value.reason) == (Code.NOT_SUPPORTED, "not_supported")


def test_what_nvml_marks_as_unknown_is_an_error() -> None:
    memory = SimpleNamespace(total=10, used=NOT_AVAILABLE, reserved=1)
    library = Library(nvmlDeviceGetMemoryInfo=lambda *_: memory, nvmlDeviceGetPerformanceState=lambda _: 32)
    for reading in ("memory", "performance_state"):
        with pytest.raises(NvmlError, match="no data"):
            BoundDevice(library, None).read(reading)


def test_the_older_name_of_the_clock_reasons() -> None:
    library = Library(
        nvmlDeviceGetCurrentClocksEventReasons=raising(Code.FUNCTION_NOT_FOUND),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4,
    )
    assert BoundDevice(library, None).read("event_reasons") == 4


def test_complaint_24_memory_of_a_process_may_be_unknown() -> None:
    found = [SimpleNamespace(pid=1, usedGpuMemory=5), SimpleNamespace(pid=2, usedGpuMemory=None)]
    library = Library(nvmlDeviceGetComputeRunningProcesses=lambda _: found)
    assert BoundDevice(library, None).processes() == [Process(1, 5), Process(2, None)]


def test_complaint_23_places_without_an_instance_are_passed_over() -> None:
    def place(handle: object, index: int) -> str:
        if index != 2:
            raise pynvml.NVMLError(Code.NOT_FOUND)
        return "mig"

    library = Library(
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=place,
        nvmlDeviceGetUUID=lambda _: "MIG-1",
        nvmlDeviceGetName=lambda _: "NVIDIA H200 MIG 1g.18gb",
        nvmlDeviceGetGpuInstanceId=lambda _: 9,
        nvmlDeviceGetComputeInstanceId=lambda _: 0,
    )
    (instance,) = BoundDevice(library, None).instances()
    assert (instance.gpu_instance, instance.memory) == (9, None)


def test_activity_between_two_samples() -> None:
    freed: list[object] = []

    def metrics(request: Any) -> None:
        assert request.numMetrics == len(ACTIVITIES)
        for place, number in enumerate(ACTIVITIES.values()):
            assert request.metrics[place].metricId == number
            request.metrics[place].value = number / 2
            request.metrics[place].nvmlReturn = Code.NO_DATA if number == 2 else 0

    library = Library(
        nvmlGpmSampleAlloc=pynvml.c_nvmlGpmSample_t,
        nvmlGpmSampleGet=lambda *_: None,
        nvmlGpmSampleFree=freed.append,
        nvmlGpmMetricsGet=metrics,
    )
    device = BoundDevice(library, None)
    earlier, later = device.activity_sample(), device.activity_sample()
    answers = device.activity(earlier, later)
    assert answers["dram"] == 5.0
    assert isinstance(answers["sm"], NvmlError)
    del earlier, later
    # samples are NVML's memory: each is given back
    assert len(freed) == 2


def test_complaint_20_a_gpu_without_events_does_not_cost_the_others_theirs() -> None:
    handles = [
        pynvml.c_nvmlDevice_t(ctypes.create_string_buffer(8).raw and pynvml.struct_c_nvmlDevice_t()) for _ in "ab"
    ]

    def register(handle: Any, kinds: int, events: object) -> None:
        if handle is handles[0]:
            raise pynvml.NVMLError(Code.GPU_IS_LOST)

    waited = []

    def wait(events: object, milliseconds: int) -> Any:
        waited.append(milliseconds)
        if len(waited) == 1:
            raise pynvml.NVMLError(Code.TIMEOUT)
        return SimpleNamespace(device=handles[1], eventData=79)

    library = Library(
        nvmlEventSetCreate=lambda: "set",
        nvmlEventSetFree=lambda _: None,
        nvmlDeviceRegisterEvents=register,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{'ab'[handles.index(handle)]}",
        nvmlEventSetWait_v2=wait,
        nvmlEventTypeXidCriticalError=8,
    )
    xids = BoundXids(library, [BoundDevice(library, handle) for handle in handles])
    assert xids.wait(0.5) is None
    assert xids.wait(0.5) == XidEvent("GPU-b", 79)
    assert waited == [500, 500]
    with pytest.raises(NvmlError):
        BoundXids(library, [BoundDevice(library, handles[0])])
