"""A profile: what one trace says, in the few numbers that are worth keeping for months."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..errors import TraceInvalid
from .activities import Activities, DeviceActivities
from .attribution import attribute
from .rules import GAPS, KernelRules
from .steps import Boundary, Steps, find_steps
from .trace import DEFAULT_LIMITS, TraceLimits, read_events

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]

_TOP_KERNELS: Final = 10
_LONGEST_SHOWN: Final = 160
_MICRO: Final = 1e-6
# SGLang's names: <id>-TP-0[-DP-0][-PP-0][-EP-0][-DECODE].trace.json.gz
_RANK: Final = re.compile(r"-TP-(\d+)(?:-DP-(\d+))?(?:-PP-(\d+))?(?:-EP-(\d+))?")


class GroupTime(BaseModel):
    """The time of a group. Per-step figures are None where the trace has no steps; `gaps` has no busy time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: Share
    step_seconds: Seconds | None
    busy_step_seconds: Seconds | None
    launches_per_step: Annotated[float, Field(ge=0)] | None


class KernelTime(BaseModel):
    """One kernel: its group, and the sum of its durations against all kernels' in the trace."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    group: str
    busy_share: Share


class StepTimes(BaseModel):
    """Durations of the counted steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: Annotated[int, Field(ge=1)]
    left_out: Annotated[int, Field(ge=0)]
    stage: str
    mean_batch: Annotated[float, Field(ge=0)] | None
    mean_seconds: Seconds
    p50_seconds: Seconds
    p99_seconds: Seconds


class Profile(BaseModel):
    """One GPU in one trace. `overlap` is the part of all kernel time that ran beside other kernels."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    target: str
    rank: str
    unix_seconds: Seconds
    boundary: Boundary
    seconds: Seconds
    steps: StepTimes | None
    overlap: Share
    groups: Mapping[str, GroupTime]
    kernels: tuple[KernelTime, ...]


def profile_trace(
    path: Path,
    rules: KernelRules,
    *,
    target: str,
    unix_seconds: float,
    graphs_per_step: int = 1,
    limits: TraceLimits = DEFAULT_LIMITS,
) -> list[Profile]:
    """One profile for each GPU of a trace. Raises TraceInvalid, also when no GPU did anything in it."""
    activities = Activities(read_events(path, limits))
    profiles = [
        _profile(activities, device, rules, target, _rank(path, index, activities), unix_seconds, graphs_per_step)
        for index, device in sorted(activities.devices.items())
        if len(device.starts)
    ]
    if not profiles:
        raise TraceInvalid(f"no GPU did anything in {path}: was it taken with the activity GPU, and under load?")
    return profiles


def _rank(path: Path, device: int, activities: Activities) -> str:
    found = _RANK.search(path.name)
    if found is None or len(activities.devices) > 1:
        return f"device{device}"
    parts = zip(("tp", "dp", "pp", "ep"), found.groups(), strict=True)
    return "-".join(f"{name}{number}" for name, number in parts if number is not None)


def _profile(
    activities: Activities,
    device: DeviceActivities,
    rules: KernelRules,
    target: str,
    rank: str,
    unix_seconds: float,
    graphs_per_step: int,
) -> Profile:
    steps = find_steps(device, activities.graph_launches, graphs_per_step)
    names = rules.names
    number_of = {name: number for number, name in enumerate(names)}
    group_of_name = np.array([number_of[rules.group(name, kind)] for name, kind in activities.names], dtype=np.intp)
    name_numbers = np.asarray(device.names)
    groups = group_of_name[name_numbers]
    starts, ends, edges = np.asarray(device.starts), np.asarray(device.ends), np.asarray(steps.edges)
    if edges[-1] <= edges[0]:
        raise TraceInvalid("the steps of the trace take no time: its time stamps are damaged")
    times = attribute(starts, ends, groups, len(names), edges)
    counted = np.asarray(steps.counted)
    total = float(np.diff(edges)[counted].sum())
    attributed, busy = times.attributed[counted].sum(axis=0), times.busy[counted].sum(axis=0)
    idle = float(times.idle[counted].sum())
    count = int(counted.sum()) if steps.boundary != "none" else None
    window = np.searchsorted(edges, starts, side="right") - 1
    in_counted = (window >= 0) & (window < len(counted)) & counted[np.clip(window, 0, len(counted) - 1)]
    launches = np.bincount(groups[in_counted], minlength=len(names))

    def per_step(microseconds: float) -> float | None:
        return None if count is None else microseconds * _MICRO / count

    found = {
        name: GroupTime(
            share=attributed[number] / total,
            step_seconds=per_step(attributed[number]),
            busy_step_seconds=per_step(busy[number]),
            launches_per_step=None if count is None else launches[number] / count,
        )
        for name, number in number_of.items()
    }
    found[GAPS] = GroupTime(
        share=idle / total, step_seconds=per_step(idle), busy_step_seconds=None, launches_per_step=None
    )
    in_union = total - idle
    return Profile(
        target=target,
        rank=rank,
        unix_seconds=unix_seconds,
        boundary=steps.boundary,
        seconds=total * _MICRO,
        steps=_step_times(steps, edges, counted),
        overlap=max(0.0, 1 - in_union / busy.sum()) if busy.sum() else 0.0,
        groups=found,
        kernels=_top(activities, name_numbers, ends - starts, group_of_name, names),
    )


def _step_times(steps: Steps, edges: np.ndarray, counted: np.ndarray) -> StepTimes | None:
    if steps.boundary == "none":
        return None
    seconds = np.diff(edges)[counted] * _MICRO
    return StepTimes(
        count=len(seconds),
        left_out=len(counted) - len(seconds),
        stage=steps.stage,
        mean_batch=steps.mean_batch,
        mean_seconds=float(seconds.mean()),
        p50_seconds=float(np.quantile(seconds, 0.5)),
        p99_seconds=float(np.quantile(seconds, 0.99)),
    )


def _top(
    activities: Activities,
    name_numbers: np.ndarray,
    durations: np.ndarray,
    group_of_name: np.ndarray,
    names: tuple[str, ...],
) -> tuple[KernelTime, ...]:
    sums = np.bincount(name_numbers, weights=durations, minlength=len(activities.names))
    total = float(sums.sum())
    return tuple(
        KernelTime(
            name=activities.names[number][0][:_LONGEST_SHOWN],
            group=names[group_of_name[number]],
            busy_share=float(sums[number]) / total,
        )
        for number in np.argsort(-sums, kind="stable")[:_TOP_KERNELS].tolist()
        if sums[number] > 0
    )
