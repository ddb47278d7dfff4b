from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pdwatch.exporters import RecordingInvalid
from pdwatch.exporters.gpu import Recording, ReplayNvml, multiplied, read_recording
from pdwatch.exporters.gpu.nvml import Code
from pdwatch.exporters.gpu.record import record
from pdwatch.exporters.gpu.recording import write_recording

if TYPE_CHECKING:
    from tests.exporters.conftest import Machine


def nothing() -> Iterator[None]:
    yield


def test_what_is_recorded_of_a_replay_gives_the_same_metrics(
    h200: Recording, machine_of: Callable[..., Machine], tmp_path: Path
) -> None:
    nvml = ReplayNvml(multiplied(h200, 2))
    nvml.fail(1, "memory", Code.NO_PERMISSION)
    nvml.fail(1, "activity", Code.NOT_SUPPORTED)
    found = record(nvml, 0.2, 0.05, "a replay", nothing)
    assert {frame.phase for frame in found.devices[0].frames} == {"idle", "load"}
    # the identities of the machine stay with it
    assert found.devices[1].identity.uuid == "GPU-00000000-0000-0000-0000-000000000001"
    for name in ("plain.json", "small.json.gz"):
        write_recording(found, tmp_path / name)
        assert read_recording(tmp_path / name) == found
    machine = machine_of(found)
    machine.scrape()
    scraped = machine.scrape()
    assert scraped.value("gpu_power_limit_watts", index="0") == 700
    assert not scraped.values("gpu_memory_used_bytes", index="1")
    assert not scraped.values("gpu_sm_active_ratio", index="1")
    assert scraped.value("pdwatch_exporter_field_errors_total", field="memory", reason="no_permission") == 2


def test_a_recording_of_eight_is_eight_gpus(h200: Recording) -> None:
    eight = multiplied(h200)
    assert len({device.identity.uuid for device in eight.devices}) == 8
    assert multiplied(h200) == eight


DAMAGED = {
    "no_json": (b"{", "is no recording"),
    "no_device": (b'{"source": "x", "driver_version": "1", "devices": []}', "at devices"),
    "extra": (b'{"source": "x", "driver_version": "1", "devices": [], "more": 1}', "is no recording"),
    "other_format": (b'{"format": 2}', "is no recording"),
    "no_text": (b"\xff\xfe", "is no recording"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_recording_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(content)
    with pytest.raises(RecordingInvalid, match=message):
        read_recording(path)


def test_a_recording_cut_off_is_refused(h200: Recording, tmp_path: Path) -> None:
    path = tmp_path / "recording.json.gz"
    write_recording(h200, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RecordingInvalid, match="cannot be read"):
        read_recording(path)
    path.write_bytes(gzip.compress(b" " * (65 << 20)))
    with pytest.raises(RecordingInvalid, match="more than 64 MiB"):
        read_recording(path)
    with pytest.raises(RecordingInvalid, match="cannot be read"):
        read_recording(tmp_path / "none.json")
