"""What a trace says of the GPUs: intervals of activity, and the marks between which steps lie.

Only numbers are kept: an interval takes 28 bytes, so a million kernels take 28 MB.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from ..errors import TraceInvalid
from .rules import ActivityKind

_KINDS: Final[Mapping[str, ActivityKind]] = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_MOST_NAMES: Final = 200_000
_MOST_DEVICES: Final = 64
_LONGEST_NAME: Final = 4000
# a trace counts microseconds since the machine's start; beyond this they have lost their fractions
_LARGEST_MICROSECONDS: Final = 1e16
# SGLang's span around a forward pass, and torch.profiler's own around an iteration
_SPAN: Final = re.compile(
    r"^step\[(?P<stage>[A-Z_]{1,40})(?: bs=(?P<batch>\d{1,7}))?[ \]]|^(?P<iteration>ProfilerStep)#\d"
)
# forward passes of a draft model belong to the step of the model it drafts for
_NO_STEPS: Final = frozenset({"DRAFT", "DRAFT_EXTEND", "DRAFT_EXTEND_V2"})
assert set(_KINDS.values()) == set(get_args(ActivityKind))


@dataclass(frozen=True, slots=True)
class Mark:
    """A step begins at `microseconds`. `batch` is None where it is not told."""

    microseconds: float
    stage: str
    batch: int | None


@dataclass(slots=True)
class DeviceActivities:
    """The activities of one GPU in the order of the trace; `names` are numbers into `Activities.names`."""

    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    names: array[int] = field(default_factory=lambda: array("I"))
    correlations: array[int] = field(default_factory=lambda: array("q"))
    # by external id: the same span is told once for each stream it has work on
    spans: dict[object, Mark] = field(default_factory=dict)


class Activities:
    """All activities of a trace, by device."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self.names: list[tuple[str, ActivityKind]] = []
        self.devices: dict[int, DeviceActivities] = {}
        self.graph_launches: set[int] = set()
        self._numbers: dict[tuple[str, ActivityKind], int] = {}
        for event in events:
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        category = event.get("cat")
        if event.get("ph") != "X" or not isinstance(category, str):
            return
        if category in _KINDS:
            self._take_activity(event, _KINDS[category])
        elif category == "gpu_user_annotation":
            self._take_span(event)
        elif category in ("cuda_runtime", "cuda_driver") and event.get("name") in ("cudaGraphLaunch", "cuGraphLaunch"):
            correlation = _argument(event, "correlation")
            if correlation is not None:
                self.graph_launches.add(correlation)

    def _take_activity(self, event: Mapping[str, Any], kind: ActivityKind) -> None:
        start, duration = _microseconds(event.get("ts")), _microseconds(event.get("dur"))
        name = event.get("name")
        if start is None or duration is None or duration < 0 or not isinstance(name, str):
            raise TraceInvalid(f"an event of a GPU has no time or no name: {str(dict(event))[:200]}")
        device = self._device(event)
        device.starts.append(start)
        device.ends.append(start + duration)
        device.names.append(self._number(name[:_LONGEST_NAME], kind))
        correlation = _argument(event, "correlation")
        device.correlations.append(-1 if correlation is None else correlation)

    def _take_span(self, event: Mapping[str, Any]) -> None:
        name, start = event.get("name"), _microseconds(event.get("ts"))
        if not isinstance(name, str) or start is None or (found := _SPAN.match(name)) is None:
            return
        stage = found["stage"] or found["iteration"]
        if stage in _NO_STEPS:
            return
        mark = Mark(start, stage, None if found["batch"] is None else int(found["batch"]))
        spans = self._device(event).spans
        identity = _argument(event, "External id")
        key: object = start if identity is None else identity
        if key not in spans or spans[key].microseconds > start:
            spans[key] = mark

    def _device(self, event: Mapping[str, Any]) -> DeviceActivities:
        index = _argument(event, "device")
        if index is None:
            # a span has no device among its arguments; on GPU rows the process is the device
            process = event.get("pid")
            index = process if isinstance(process, int) and 0 <= process < _MOST_DEVICES else 0
        device = self.devices.get(index)
        if device is None:
            if len(self.devices) >= _MOST_DEVICES:
                raise TraceInvalid(f"the trace names more than {_MOST_DEVICES} GPUs")
            device = self.devices[index] = DeviceActivities()
        return device

    def _number(self, name: str, kind: ActivityKind) -> int:
        key = (name, kind)
        number = self._numbers.get(key)
        if number is None:
            if len(self.names) >= _MOST_NAMES:
                raise TraceInvalid(f"the trace names more than {_MOST_NAMES} kernels")
            number = self._numbers[key] = len(self.names)
            self.names.append(key)
        return number


def _microseconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) < _LARGEST_MICROSECONDS else None


def _argument(event: Mapping[str, Any], name: str) -> int | None:
    arguments = event.get("args")
    value = arguments.get(name) if isinstance(arguments, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        return None
    return value
