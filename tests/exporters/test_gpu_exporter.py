from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pdwatch.exporters.gpu import DEFINITIONS, Recording, UnitsOfProcesses
from pdwatch.exporters.gpu.nvml import LOST, UNAVAILABLE, Code
from pdwatch.exporters.gpu.readings import FIELDS, READINGS
from pdwatch.exporters.gpu.recording import RecordedDevice, RecordedFrame, RecordedProcess
from pdwatch.exporters.gpu.wraps import WrappingCounter
from pdwatch.exporters.gpu.xids import MOST_NUMBERS

if TYPE_CHECKING:
    from tests.exporters.conftest import Machine, Scraped

SECONDS = 20.0
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
# what an H200 in a virtual machine does not have
NOT_ON_AN_H200 = {
    "gpu_nvlink_links",
    "gpu_nvlink_rx_bytes_total",
    "gpu_nvlink_tx_bytes_total",
    "gpu_nvlink_errors_total",
}
# what needs an event, MIG or a wish
ONLY_SOMETIMES = {
    "gpu_xid_errors_total",
    "gpu_xid_last_timestamp_seconds",
    "gpu_process_memory_bytes",
    "gpu_processes",
    *(definition.name for definition in DEFINITIONS if definition.name.startswith("gpu_instance_")),
}
# one failure of each kind: of a call of its own, of a call with many numbers, of a field, of an activity
FAILING = [*READINGS, "fields", "activity_sample", "activity", "energy", "pcie_rx", "recovery_action", "dram"]
HARMLESS = [code for code in Code if code not in LOST | UNAVAILABLE]


def rewritten(recording: Recording, change: Callable[[RecordedFrame], dict[str, object]]) -> Recording:
    def device(old: RecordedDevice) -> RecordedDevice:
        frames = tuple(frame.model_copy(update=change(frame)) for frame in old.frames)
        return old.model_copy(update={"frames": frames})

    return recording.model_copy(update={"devices": tuple(map(device, recording.devices))})


def test_every_metric_is_there(machine: Machine) -> None:
    machine.scrape()
    scraped = machine.scrape()
    expected = {definition.name for definition in DEFINITIONS} - NOT_ON_AN_H200 - ONLY_SOMETIMES
    assert scraped.gpu_names() == expected
    for name in expected:
        assert {labels["index"] for labels in scraped.labels(name)} == set("01234567"), name
        assert all({"uuid", "index"} <= labels.keys() for labels in scraped.labels(name))


def test_nvlink_is_there_where_the_gpu_has_it(h200: Recording, machine_of: Callable[..., Machine]) -> None:
    # the recorded machine hides its links; numbers as a machine with links gives them
    links = {field.name: 3 for field in FIELDS if field.name.startswith("nvlink_")}

    def change(frame: RecordedFrame) -> dict[str, object]:
        assert isinstance(frame.fields, dict)
        return {"fields": frame.fields | links}

    scraped = machine_of(rewritten(h200, change)).scrape()
    assert NOT_ON_AN_H200 <= scraped.gpu_names()
    assert scraped.value("gpu_nvlink_rx_bytes_total") == 3 * 1024
    assert {labels["type"] for labels in scraped.labels("gpu_nvlink_errors_total")} == {
        "replay",
        "recovery",
        "crc",
        "ecc",
    }


def test_units_are_base_units(single: Machine) -> None:
    # twelve seconds into the recording the card works at its limit
    single.scrape(12.0)
    scraped = single.scrape(2.0)
    assert 600 < scraped.value("gpu_power_watts") < 750
    assert scraped.value("gpu_power_limit_watts") == 700
    assert scraped.value("gpu_memory_total_bytes") == 143771 * 2**20
    assert scraped.value("gpu_clock_max_hertz", clock="sm") == 1.98e9
    assert 0.9 < scraped.value("gpu_utilization_ratio") <= 1
    assert 20 < scraped.value("gpu_temperature_celsius", sensor="gpu") < 95
    assert scraped.value("gpu_throttled", reason="software_power_cap") == 1
    assert scraped.value("gpu_throttled", reason="hardware_thermal") == 0
    for name in (name for name in scraped.gpu_names() if name.endswith("_ratio")):
        assert all(0 <= value <= 1 for value in scraped.values(name)), name
    # the mean power over the load, from the counter of energy: within a tenth of the limit
    later = single.scrape(4.0)
    joules = later.value("gpu_energy_joules_total") - scraped.value("gpu_energy_joules_total")
    assert joules / 4.0 == pytest.approx(690, rel=0.1)


def test_complaint_28_activity_tells_what_utilization_does_not(single: Machine) -> None:
    single.scrape(11.0)
    scraped = single.scrape(2.0)
    assert scraped.value("gpu_activity_window_seconds") == 2.0
    # any kernel keeps utilization at 1; half of the time the load only copies
    assert scraped.value("gpu_utilization_ratio") == 1.0
    assert 0.5 < scraped.value("gpu_tensor_active_ratio") < 0.8
    assert 0.2 < scraped.value("gpu_dram_active_ratio") < 0.5
    help_text = next(definition.help for definition in DEFINITIONS if definition.name == "gpu_utilization_ratio")
    assert "does not mean busy" in help_text


def test_two_scrapers_do_not_take_each_others_window(single: Machine) -> None:
    single.scrape()
    windows = []
    for _ in range(3):
        windows.append(single.scrape(4.9).value("gpu_activity_window_seconds"))
        windows.append(single.scrape(0.1).value("gpu_activity_window_seconds"))
    # the second scraper looks back to the sample before the first one's
    assert windows == pytest.approx([4.9, 5.0, 5.0, 5.0 + 0.1, 5.0, 5.1], abs=0.21)
    assert min(windows) > 0.5


def test_complaint_21_a_missing_field_is_absent_and_counted(single: Machine) -> None:
    single.nvml.fail(0, "memory", Code.NOT_SUPPORTED)
    single.nvml.fail(0, "energy", Code.NO_PERMISSION)
    scraped = single.scrape()
    assert not {"gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_energy_joules_total"} & scraped.names()
    assert scraped.value("gpu_up") == 1
    errors = "pdwatch_exporter_field_errors_total"
    assert scraped.value(errors, field="memory", reason="not_supported") == 1
    assert scraped.value(errors, field="energy", reason="no_permission") == 1
    assert single.scrape().value(errors, field="memory", reason="not_supported") == 2
    single.nvml.heal(0)
    assert "gpu_memory_used_bytes" in single.scrape().names()


@pytest.mark.parametrize("code", [*HARMLESS, 4711], ids=str)
@pytest.mark.parametrize("reading", FAILING)
def test_complaint_21_no_error_of_any_call_costs_the_rest(single: Machine, reading: str, code: int) -> None:
    single.scrape()
    whole = single.scrape().gpu_names()
    single.nvml.fail(0, reading, code)
    scraped = single.scrape()
    assert scraped.failure is None
    assert scraped.value("gpu_up") == 1
    # a call whose number another one gives too takes no metric with it
    gone = whole - scraped.gpu_names()
    assert gone or reading in (
        "power_usage",
        "clock_sm_max",
        "clock_memory_max",
        "temperature",
        "clock_sm",
        "clock_memory",
    )
    assert len(gone) < (26 if reading == "fields" else 16)
    assert all(value == value for value in scraped.samples.values())


@pytest.mark.parametrize("code", sorted(LOST), ids=str)
def test_complaint_20_a_lost_gpu_leaves_the_others(machine: Machine, code: Code) -> None:
    machine.scrape()
    whole = machine.scrape()
    machine.nvml.lose(3, code)
    scraped = machine.scrape()
    assert scraped.failure is None
    assert sorted(scraped.values("gpu_up")) == [0, 1, 1, 1, 1, 1, 1, 1]
    assert scraped.value("gpu_up", index="3") == 0
    # it is named, so that it can be found, and nothing else is said of it
    said = {name for name, labels in scraped.samples if ("index", "3") in labels}
    assert said == {"gpu_up", "gpu_info"}
    others = {key for key in whole.samples if ("index", "3") not in key[1] and key[0].startswith("gpu_")}
    assert others <= scraped.samples.keys()


def test_complaint_20_a_lost_gpu_stays_known_and_comes_back(machine: Machine) -> None:
    uuid = machine.scrape().labels("gpu_up")[3]["uuid"]
    machine.nvml.lose(3)
    machine.scrape()
    for _ in range(20):
        # NVML is started again meanwhile, with seven GPUs, and ever more rarely
        scraped = machine.scrape(70.0)
        assert scraped.value("gpu_up", index="3", uuid=uuid) == 0
        assert len(scraped.values("gpu_up")) == 8
    starts = machine.nvml.starts
    assert 5 < starts < 12
    machine.nvml.find(3)
    machine.scrape(600.0)
    scraped = machine.scrape(70.0)
    assert scraped.values("gpu_up") == [1] * 8
    assert machine.nvml.starts == starts + 1
    machine.scrape(70.0)
    assert machine.nvml.starts == starts + 1


def test_a_gpu_lost_before_the_first_scrape_has_an_index(machine: Machine) -> None:
    machine.nvml.lose(5)
    scraped = machine.scrape()
    assert scraped.value("gpu_up", index="5") == 0
    assert {"index": "5"}.items() <= next(
        labels for labels in scraped.labels("gpu_up") if labels["index"] == "5"
    ).items()
    assert len(scraped.values("gpu_power_watts")) == 7


def test_complaint_20_all_gpus_lost_is_said_of_each(machine: Machine) -> None:
    machine.scrape()
    for index in range(8):
        machine.nvml.lose(index)
    scraped = machine.scrape()
    assert scraped.values("gpu_up") == [0] * 8
    assert scraped.gpu_names() == {"gpu_up", "gpu_info"}


@pytest.mark.parametrize("code", sorted(UNAVAILABLE), ids=str)
def test_complaint_18_no_gpu_data_while_the_driver_is_gone(machine: Machine, code: Code) -> None:
    success = machine.scrape().value("pdwatch_exporter_last_success_timestamp_seconds")
    machine.nvml.unload(code)
    for _ in range(3):
        scraped = machine.scrape()
        assert not scraped.gpu_names()
        assert scraped.value("pdwatch_exporter_up") == 0
        assert scraped.value("pdwatch_exporter_last_success_timestamp_seconds") == success
        assert not machine.exporter.health().is_good
    assert "tried again in" in machine.exporter.health().reason
    machine.nvml.load()
    machine.scrape(120.0)
    assert machine.scrape().values("gpu_up") == [1] * 8
    assert machine.exporter.health().is_good


def test_attempts_to_start_nvml_become_rarer(machine: Machine) -> None:
    machine.scrape()
    machine.nvml.unload()
    machine.scrape(1.0)
    calls = [machine.nvml.calls]
    for _ in range(300):
        machine.scrape(1.0)
        calls.append(machine.nvml.calls)
    asked_at = [second for second in range(1, 301) if calls[second] > calls[second - 1]]
    waits = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    assert waits[:5] == [2, 4, 8, 16, 32] or waits[:5] == [4, 8, 16, 32, 60]
    assert max(waits) == 60


def test_a_driver_that_restarts_is_found_again_at_once(machine: Machine) -> None:
    before = machine.scrape(9.0).value("gpu_energy_joules_total", index="0")
    machine.nvml.load()
    # the old handles are dead: one collection fails, the next starts anew
    assert machine.scrape(0.5).value("pdwatch_exporter_up") == 0
    after = machine.scrape(0.5).value("gpu_energy_joules_total", index="0")
    assert 0 <= after < before


def test_complaint_14_a_counter_starts_again_from_zero_and_is_never_negative(machine: Machine) -> None:
    machine.scrape(30.0)
    machine.nvml.load()
    machine.scrape()
    for _ in range(20):
        scraped = machine.scrape(3.0)
        counters = [value for (name, _), value in scraped.samples.items() if name.endswith("_total")]
        assert min(counters) >= 0


def test_complaint_15_every_total_is_monotonic_over_the_recording(machine: Machine) -> None:
    previous: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    # more than two plays of the recording: the seams must not show
    for _ in range(30):
        scraped = machine.scrape(1.5)
        for key, value in scraped.samples.items():
            if key[0].endswith("_total"):
                assert value >= previous.get(key, 0.0), key
                previous[key] = value


def test_complaint_15_a_pcie_counter_of_32_bits_does_not_fall() -> None:
    counter = WrappingCounter()
    assert counter.advance(2**32 - 100, 0.0, None) == 2**32 - 100
    assert counter.advance(50, 1.0, None) == 2**32 + 50
    # 100 GB/s for five seconds wraps 116 times; GPM, off by less than 2 GiB, tells how many times
    true = 500e9
    assert counter.advance((50 + true) % 2**32, 6.0, 1.004 * true / 5) == 2**32 + 50 + true
    # a counter of 64 bits is passed on as it is
    wide = WrappingCounter()
    wide.advance(2**40, 0.0, None)
    assert wide.advance(2**41, 1.0, 5.0) == 2**41


def test_pcie_bytes_agree_with_gpm_over_the_recording(single: Machine) -> None:
    single.scrape(10.5)
    first, last = single.scrape(0.5), single.scrape(8.0)
    for direction in ("rx", "tx"):
        name = f"gpu_pcie_{direction}_bytes_total"
        # the counter wraps in between, after sixteen seconds
        assert last.value(name) - first.value(name) == pytest.approx(
            8 * 21e6 if direction == "rx" else 8 * 10e6, rel=0.1
        )


def test_complaint_19_an_xid_is_a_time_stamp_that_ages(machine: Machine) -> None:
    assert "gpu_xid_errors_total" not in machine.scrape().names()
    machine.nvml.raise_xid(2, 79)
    assert machine.source.watcher.wait_for(1, SECONDS)
    first = machine.scrape()
    assert first.value("gpu_xid_errors_total", index="2", xid="79") == 1
    stamp = first.value("gpu_xid_last_timestamp_seconds", index="2", xid="79")
    assert abs(stamp - time.time()) < SECONDS
    # the alert is on the age of the stamp, which grows; the count neither clears nor grows by itself
    for _ in range(3):
        later = machine.scrape(600.0)
        assert later.value("gpu_xid_last_timestamp_seconds", index="2", xid="79") == stamp
        assert later.value("gpu_xid_errors_total", index="2", xid="79") == 1


def test_complaint_19_a_storm_of_xids_makes_few_series(machine: Machine) -> None:
    machine.scrape()
    for number in range(3000):
        machine.nvml.raise_xid(0, number % 500)
    assert machine.source.watcher.wait_for(3000, SECONDS)
    scraped = machine.scrape()
    assert sum(scraped.values("gpu_xid_errors_total")) == 3000
    assert len(scraped.values("gpu_xid_errors_total")) == MOST_NUMBERS + 1
    assert scraped.value("gpu_xid_errors_total", xid="other") == 3000 - 6 * MOST_NUMBERS


def test_xids_outlive_a_restart_of_nvml(machine: Machine) -> None:
    machine.scrape()
    machine.nvml.raise_xid(1, 48)
    assert machine.source.watcher.wait_for(1, SECONDS)
    machine.nvml.load()
    machine.scrape()
    assert machine.scrape().value("gpu_xid_errors_total", index="1", xid="48") == 1
    machine.nvml.raise_xid(1, 48)
    assert machine.source.watcher.wait_for(2, SECONDS)
    assert machine.scrape().value("gpu_xid_errors_total", index="1", xid="48") == 2


def test_complaint_23_mig_instances(mig: Machine) -> None:
    mig.scrape()
    scraped = mig.scrape()
    assert scraped.value("gpu_mig_enabled", index="0") == 1
    assert scraped.value("gpu_mig_enabled", index="1") == 0
    assert len(scraped.values("gpu_instance_info")) == 4
    # two compute instances share the memory of GPU instance 2: one series; the fourth one's is not told: absent
    memory = {labels["gpu_instance"] for labels in scraped.labels("gpu_instance_memory_used_bytes")}
    assert memory == {"1", "2"}
    assert scraped.value("gpu_instance_memory_used_bytes", gpu_instance="2") == 2 << 30
    assert scraped.value("gpu_instance_sm_active_ratio", gpu_instance="9") == pytest.approx(0.9)
    # energy is the board's, once, and utilization does not exist on a GPU that is split
    assert len(scraped.values("gpu_energy_joules_total", index="0")) == 1
    assert not scraped.values("gpu_utilization_ratio", index="0")
    assert scraped.values("gpu_utilization_ratio", index="1")
    assert not scraped.values("gpu_sm_active_ratio", index="0")
    assert scraped.value("pdwatch_exporter_field_errors_total", field="instance_memory") == 2


def test_complaint_24_memory_is_told_by_unit(
    h200: Recording, machine_of: Callable[..., Machine], tmp_path: Path
) -> None:
    units = {1: "sglang-decode@1.service", 2: "sglang-decode@1.service", 3: "sshd.service", 4: "docker-0.scope"}
    for pid, unit in units.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/system.slice/{unit}\n")
    used = {1: 5, 2: 7, 3: None, 4: 11, 5: 13}
    processes = tuple(RecordedProcess(pid=pid, used_bytes=size) for pid, size in used.items())
    recording = rewritten(h200, lambda frame: {"processes": processes})
    machine = machine_of(recording, UnitsOfProcesses(("*.service",), tmp_path))
    scraped = machine.scrape()
    name = "gpu_process_memory_bytes"
    assert scraped.value(name, unit="sglang-decode@1.service") == 12
    # a container's scope was not asked for; a pid that is not ours to see is said to be unknown
    assert scraped.value(name, unit="other") == 11
    assert scraped.value(name, unit="unknown") == 13
    # NVML did not tell: absent, and not zero
    assert not scraped.values(name, unit="sshd.service")
    assert scraped.value("gpu_processes", unit="sshd.service") == 1
    assert all("pid" not in labels for labels in scraped.labels(name))
    assert not machine_of(recording).scrape().values(name)


@given(value=st.one_of(st.floats(), st.integers(-(2**70), 2**70)))
def test_complaint_21_no_number_breaks_a_scrape(value: float) -> None:
    from pdwatch.exporters.gpu.collector import _Reader

    class Odd:
        def read(self, reading: str) -> object:
            return {"total": value, "used": value} if reading == "memory" else value

        def fields(self) -> dict[str, float]:
            return {"energy": value}

    from pdwatch.exporters import FieldErrors

    errors = FieldErrors()
    reader = _Reader(errors)
    reader.read(Odd(), {})  # type: ignore[arg-type]  # all that is read of a device
    assert all(Sample("x", {}, number).value >= 0 for number in reader.numbers.values())
    errors.settle()
    assert ("energy" in reader.numbers) is (("energy", "invalid") not in errors.counts())


def test_the_recording_tells_nothing_of_its_machine(h200: Recording) -> None:
    (device,) = h200.devices
    assert device.identity.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert set(device.identity.serial) == {"0"}
    assert {frame.phase for frame in device.frames} == {"idle", "load"}


def test_a_scrape_is_small_and_quick(machine: Machine) -> None:
    machine.scrape()
    scraped: Scraped = machine.scrape()
    assert len(scraped.samples) < 800
    assert scraped.text.count("# HELP") == scraped.text.count("# TYPE") == len(scraped.families)


def test_complaint_25_a_scrape_of_eight_gpus_has_a_budget(machine: Machine) -> None:
    seconds = []
    for _ in range(8):
        machine.clock.advance(5.0)
        begun = time.perf_counter()
        machine.exporter.scrape().exposition(OPENMETRICS, True)
        seconds.append(time.perf_counter() - begun)
    # the quickest: what a busy machine adds is not ours. The bench holds the real bar, this one the order of size
    assert min(seconds) < 0.2


def test_openmetrics_takes_it(mig: Machine) -> None:
    mig.scrape()
    mig.nvml.raise_xid(0, 79)
    assert mig.source.watcher.wait_for(1, SECONDS)
    mig.clock.advance(5.0)
    text = mig.exporter.scrape().exposition(OPENMETRICS, False).body.decode()
    # its parser is strict: types, suffixes, order, the end
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert families["gpu_xid_errors"] == "counter" and families["gpu"] == "info"


def test_samples_of_a_stopped_nvml_are_not_used(machine: Machine) -> None:
    machine.scrape()
    machine.scrape()
    machine.nvml.lose(3)
    machine.scrape()
    starts = machine.nvml.starts
    # started again: the first scrape after has no earlier sample
    scraped = machine.scrape(70.0)
    assert machine.nvml.starts == starts + 1
    assert not scraped.values("gpu_sm_active_ratio")
    # the byte counters go on: the driver did not restart
    assert len(scraped.values("gpu_pcie_rx_bytes_total")) == 7
    assert len(machine.scrape(0.9).values("gpu_sm_active_ratio")) == 7
