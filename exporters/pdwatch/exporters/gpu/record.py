"""Record every answer of NVML that the GPU exporter uses: first idle, then under a load if PyTorch is there.

    python -m pdwatch.exporters.gpu.record --seconds 20 --out h200.json.gz

It changes no setting. The load is a loop of matrix products and copies on each GPU, ended with the recording. Serial
numbers, UUIDs and process ids are replaced: a recording is for sharing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from ..errors import ExportersError
from .binding import BoundNvml
from .nvml import Device, Identity, Instance, Number, Nvml, NvmlError
from .readings import READINGS
from .recording import (
    Answer,
    FieldAnswer,
    RecordedDevice,
    RecordedError,
    RecordedFrame,
    RecordedIdentity,
    RecordedInstance,
    RecordedProcess,
    Recording,
    write_recording,
)

Result = TypeVar("Result")

_LOAD_STARTS_SECONDS: Final = 60.0
# matrix products that fill the tensor cores and copies that fill DRAM, half of the time each
LOAD: Final = """
import sys, torch
devices = range(torch.cuda.device_count())
work = []
for device in devices:
    with torch.cuda.device(device):
        a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
        b = torch.empty(1 << 29, dtype=torch.float32, device="cuda")
        work.append((device, a, b, torch.empty_like(a), torch.empty_like(b)))
print("ready", flush=True)
while True:
    for device, a, b, out, copy in work:
        with torch.cuda.device(device):
            for _ in range(8):
                torch.mm(a, a, out=out)
            for _ in range(4):
                copy.copy_(b)
    for device in devices:
        torch.cuda.synchronize(device)
"""


def record(
    nvml: Nvml,
    seconds: float,
    interval_seconds: float,
    source: str,
    load: Callable[[], Iterator[None]] | None = None,
) -> Recording:
    """Record all GPUs for `seconds`: half idle and half under `load`, or all idle without one. Raises NvmlError."""
    nvml.start()
    try:
        devices = [nvml.device(index) for index in range(nvml.device_count())]
        recorders = [_Recorder(device) for device in devices]
        started = time.monotonic()
        idle_seconds = seconds / 2 if load is not None else seconds
        _take(recorders, "idle", started, idle_seconds, interval_seconds)
        if load is not None:
            with contextmanager(load)():
                # the start of the load is not part of the recording
                started = time.monotonic() - idle_seconds
                _take(recorders, "load", started, seconds, interval_seconds)
        return Recording(
            source=source,
            driver_version=nvml.driver_version(),
            devices=tuple(recorder.recorded(index) for index, recorder in enumerate(recorders)),
        )
    finally:
        nvml.stop()


def _take(recorders: Sequence[_Recorder], phase: str, started: float, until: float, interval_seconds: float) -> None:
    """Take frames every `interval_seconds` from now to `until` seconds after `started`."""
    while (now := time.monotonic() - started) < until:
        for recorder in recorders:
            recorder.take(phase, round(now, 3))
        time.sleep(max(0.0, min(now + interval_seconds, until) + started - time.monotonic()))


class _Recorder:
    """The frames of one GPU."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._identity = device.identity()
        self._samples: dict[int | None, object] = {}
        self._frames: list[RecordedFrame] = []

    def take(self, phase: str, seconds: float) -> None:
        device = self._device
        frame = RecordedFrame(
            seconds=seconds,
            phase=phase,
            readings={name: self._reading(name) for name in READINGS},
            fields=_answers(device.fields),
            activity=self._activity(None),
            processes=_caught(
                lambda: tuple(
                    RecordedProcess(pid=number, used_bytes=process.used_bytes)
                    for number, process in enumerate(device.processes(), start=1)
                )
            ),
            instances=_caught(lambda: tuple(map(self._instance, device.instances()))),
        )
        self._frames.append(frame)

    def _reading(self, name: str) -> Answer:
        try:
            answer = self._device.read(name)
        except NvmlError as error:
            return RecordedError(error=error.code)
        return dict(answer) if isinstance(answer, Mapping) else answer

    def recorded(self, index: int) -> RecordedDevice:
        return RecordedDevice(identity=_anonymous(self._identity, index), frames=tuple(self._frames))

    def _instance(self, instance: Instance) -> RecordedInstance:
        return RecordedInstance(
            uuid=f"MIG-{instance.gpu_instance}-{instance.compute_instance}",
            name=instance.name,
            gpu_instance=instance.gpu_instance,
            compute_instance=instance.compute_instance,
            memory=None if instance.memory is None else dict(instance.memory),
            activity=self._activity(instance.gpu_instance),
        )

    def _activity(self, gpu_instance: int | None) -> dict[str, FieldAnswer] | RecordedError:
        def since_last() -> Mapping[str, Number | NvmlError]:
            later = self._device.activity_sample(gpu_instance)
            earlier = self._samples.get(gpu_instance)
            self._samples[gpu_instance] = later
            return {} if earlier is None else self._device.activity(earlier, later)

        return _answers(since_last)


def _caught(call: Callable[[], Result]) -> Result | RecordedError:
    try:
        return call()
    except NvmlError as error:
        return RecordedError(error=error.code)


def _answers(call: Callable[[], Mapping[str, Number | NvmlError]]) -> dict[str, FieldAnswer] | RecordedError:
    found = _caught(call)
    if isinstance(found, RecordedError):
        return found
    return {
        name: RecordedError(error=value.code) if isinstance(value, NvmlError) else value
        for name, value in found.items()
    }


def _anonymous(identity: Identity, index: int) -> RecordedIdentity:
    return RecordedIdentity(
        uuid=f"GPU-00000000-0000-0000-0000-{index:012d}",
        name=identity.name,
        pci_bus_id=f"00000000:{index + 1:02x}:00.0",
        serial=f"{index:013d}" if identity.serial else "",
        vbios_version=identity.vbios_version,
    )


def torch_load() -> Iterator[None]:
    """Matrix products and copies on every GPU, in another process. Raises ExportersError when it will not start."""
    with subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise ExportersError(f"the load ended with code {process.wait(_LOAD_STARTS_SECONDS)}; use --no-load")
            yield
        finally:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pdwatch.exporters.gpu.record", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the recording")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two frames")
    parser.add_argument("--out", type=Path, required=True, help="file to write; gzipped if it ends in .gz")
    parser.add_argument("--source", default="recorded with python -m pdwatch.exporters.gpu.record", help="a remark")
    parser.add_argument("--no-load", action="store_true", help="stay idle")
    arguments = parser.parse_args()
    load = None if arguments.no_load or not _has_torch() else torch_load
    try:
        recording = record(BoundNvml(), arguments.seconds, arguments.interval, arguments.source, load)
    except (NvmlError, ExportersError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    write_recording(recording, arguments.out)
    frames = sum(len(device.frames) for device in recording.devices)
    print(f"{arguments.out}: {len(recording.devices)} GPUs, {frames} frames{'' if load else ', idle only'}")
    return 0


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


if __name__ == "__main__":
    sys.exit(main())
