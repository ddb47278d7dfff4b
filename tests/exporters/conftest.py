"""Clocks that tests move, machines of replayed GPUs, and what an exposition says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pdwatch.exporters import Exporter
from pdwatch.exporters.gpu import GpuSource, Recording, ReplayNvml, UnitsOfProcesses, demo_recording, multiplied
from pdwatch.exporters.gpu.nvml import Code
from pdwatch.exporters.gpu.readings import ACTIVITIES
from pdwatch.exporters.gpu.recording import RecordedError, RecordedFrame, RecordedInstance
from pdwatch.exporters.gpu.xids import XidWatcher

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Machine:
    """Replayed GPUs behind an exporter, with a clock for both."""

    def __init__(self, recording: Recording, units: UnitsOfProcesses | None = None) -> None:
        self.clock = Clock()
        self.nvml = ReplayNvml(recording, self.clock)
        self.source = GpuSource(self.nvml, units=units, watcher=XidWatcher(wait_seconds=0.01), monotonic=self.clock)
        self.exporter = Exporter("gpu", self.source, unix_time=self.clock)

    def scrape(self, seconds: float = 5.0) -> Scraped:
        """Let `seconds` pass and scrape."""
        self.clock.advance(seconds)
        return Scraped(self.exporter)


class Scraped:
    """One scrape, by name and labels."""

    def __init__(self, exporter: Exporter) -> None:
        snapshot = exporter.scrape()
        self.failure = snapshot.failure
        self.text = snapshot.exposition("", False).body.decode()
        self.families: list[Metric] = list(text_string_to_metric_families(self.text))
        self.samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def values(self, name: str, **labels: str) -> list[float]:
        wanted = set(labels.items())
        return [value for (found, having), value in self.samples.items() if found == name and wanted <= having]

    def value(self, name: str, **labels: str) -> float:
        (value,) = self.values(name, **labels)
        return value

    def labels(self, name: str) -> list[Mapping[str, str]]:
        return [dict(labels) for found, labels in self.samples if found == name]

    def gpu_names(self) -> set[str]:
        return {name for name in self.names() if name.startswith("gpu_")}


@pytest.fixture(scope="session")
def h200() -> Recording:
    """One H200 as it was recorded."""
    return demo_recording()


@pytest.fixture
def machine(h200: Recording) -> Iterator[Machine]:
    """Eight H200s."""
    yield from _closing(Machine(multiplied(h200)))


@pytest.fixture
def single(h200: Recording) -> Iterator[Machine]:
    """One H200."""
    yield from _closing(Machine(h200))


@pytest.fixture
def mig(h200: Recording) -> Iterator[Machine]:
    """Two H200s of which the first is split: made from the recorded one, since no MIG machine could be recorded."""
    yield from _closing(Machine(mig_recording(h200)))


@pytest.fixture
def machine_of() -> Iterator[Callable[..., Machine]]:
    """Makes machines that are closed in the end."""
    made: list[Machine] = []

    def make(recording: Recording, units: UnitsOfProcesses | None = None) -> Machine:
        made.append(Machine(recording, units))
        return made[-1]

    yield make
    for machine in made:
        machine.exporter.close()


def mig_recording(recording: Recording) -> Recording:
    two = multiplied(recording, 2)
    first = two.devices[0]
    split = first.model_copy(update={"frames": tuple(map(_split, first.frames))})
    return two.model_copy(update={"devices": (split, two.devices[1])})


def _split(frame: RecordedFrame) -> RecordedFrame:
    not_supported = RecordedError(error=Code.NOT_SUPPORTED)
    shapes = [
        (1, 0, "3g.71gb", 76 << 30),
        (2, 0, "3g.71gb", 76 << 30),
        (2, 1, "1c.3g.71gb", 76 << 30),
        (9, 0, "1g.18gb", None),
    ]
    instances = tuple(
        RecordedInstance(
            uuid=f"MIG-{gpu_instance}-{compute_instance}",
            name=f"NVIDIA H200 MIG {name}",
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            memory=None if total is None else {"total": total, "used": gpu_instance << 30, "reserved": 0},
            activity=dict.fromkeys(ACTIVITIES, 10.0 * gpu_instance),
        )
        for gpu_instance, compute_instance, name, total in shapes
    )
    # a GPU that is split has neither utilization nor processes of its own
    readings = dict(frame.readings) | {"mig_mode": 1, "utilization": not_supported}
    changes: dict[str, object] = {"readings": readings, "instances": instances, "activity": not_supported}
    return frame.model_copy(update=changes)


def _closing(machine: Machine) -> Iterator[Machine]:
    yield machine
    machine.exporter.close()
