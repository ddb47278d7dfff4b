from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.exporters import TraceInvalid
from pdwatch.exporters.profile import GAPS, KernelRules, Profile, profile_trace, read_rules
from pdwatch.exporters.profile import attribution as attribution_module
from pdwatch.exporters.profile.attribution import attribute

DATA = Path(__file__).parents[1] / "data" / "traces"
MOE, ATTENTION, INDEXER, GEMM = "fused_moe_kernel", "flash_fwd_mla", "fp8_paged_mqa_logits", "nvjet_sm90"


@pytest.fixture(scope="module")
def rules() -> KernelRules:
    return read_rules()


@pytest.fixture
def profiles(rules: KernelRules, tmp_path: Path) -> Any:
    def profiles(events: list[dict[str, Any]], name: str = "trace.json", **settings: Any) -> list[Profile]:
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": events}))
        return profile_trace(path, rules, target="decode", unix_seconds=1.0, **settings)

    return profiles


def kernel(name: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    given = {"device": 0, "stream": 7, "correlation": 0} | arguments
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration, "pid": 0, "args": given}


def span(name: str, start: float, identity: int | None, duration: float = 50.0) -> dict[str, Any]:
    arguments = {} if identity is None else {"External id": identity}
    return {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": name,
        "ts": start,
        "dur": duration,
        "pid": 0,
        "args": arguments,
    }


def launch(correlation: int, start: float) -> dict[str, Any]:
    arguments = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": start, "dur": 9.0, "args": arguments}


def steps(count: int, indexer: float = 10.0, **arguments: Any) -> list[dict[str, Any]]:
    """Steps of 100 µs: attention 20, MoE 30, an indexer, and nothing for the rest."""
    events = []
    for number in range(count):
        start = 1000.0 + 100.0 * number
        events += [
            span(f"step[DECODE bs={number + 1}]", start, number),
            kernel(ATTENTION, start, 20.0, correlation=number, **arguments),
            kernel(MOE, start + 20.0, 30.0, correlation=number, **arguments),
            kernel(INDEXER, start + 50.0, indexer, correlation=number, **arguments),
        ]
    return events


def shares(profile: Profile) -> dict[str, float]:
    return {name: round(group.share, 9) for name, group in profile.groups.items() if group.share}


def test_shares_and_times_per_step(profiles: Any) -> None:
    (profile,) = profiles(steps(6))
    assert shares(profile) == {"attention": 0.2, "moe": 0.3, "indexer": 0.1, "gaps": 0.4}
    assert profile.boundary == "span"
    assert profile.steps is not None
    # of six spans the first and the last are left out
    assert (profile.steps.count, profile.steps.stage, profile.steps.mean_batch) == (4, "DECODE", 3.5)
    assert profile.steps.mean_seconds == pytest.approx(100e-6)
    moe = profile.groups["moe"]
    assert (moe.step_seconds, moe.busy_step_seconds) == (pytest.approx(30e-6), pytest.approx(30e-6))
    assert moe.launches_per_step == 1
    assert profile.groups[GAPS].step_seconds == pytest.approx(40e-6)
    assert profile.overlap == pytest.approx(0, abs=1e-12)
    assert [found.name for found in profile.kernels] == [MOE, ATTENTION, INDEXER]
    assert profile.kernels[0].busy_share == pytest.approx(0.5)


def test_the_order_of_events_does_not_matter(profiles: Any) -> None:
    events = steps(6)
    (expected,) = profiles(events)
    np.random.default_rng(0).shuffle(events)
    (shuffled,) = profiles(events)
    assert shares(shuffled) == shares(expected)
    assert shuffled.steps == expected.steps


def test_streams_that_overlap_share_the_time(profiles: Any) -> None:
    events = []
    for number in range(4):
        start = 100.0 * number
        events += [
            span("step[DECODE bs=8]", start, number),
            kernel(ATTENTION, start, 60.0),
            # beside it from 20 to 40 µs, on two more streams at once; those are one group
            kernel(INDEXER, start + 20.0, 20.0, stream=8),
            kernel(INDEXER, start + 20.0, 20.0, stream=9),
        ]
    (profile,) = profiles(events)
    # 40 µs alone, and half of the 20 shared ones
    assert shares(profile) == {"attention": 0.5, "indexer": 0.1, "gaps": 0.4}
    assert profile.groups["attention"].busy_step_seconds == pytest.approx(60e-6)
    assert profile.groups["indexer"].busy_step_seconds == pytest.approx(40e-6)
    # 100 µs of kernels in 60 µs
    assert profile.overlap == pytest.approx(0.4)


def test_a_kernel_over_a_boundary_counts_in_both_steps(profiles: Any) -> None:
    events = [span("step[DECODE bs=1]", 100.0 * number, number) for number in range(4)]
    events += [kernel(GEMM, 150.0, 100.0), kernel(GEMM, 50.0, 10.0), kernel(GEMM, 320.0, 10.0)]
    (profile,) = profiles(events)
    assert profile.steps is not None and profile.steps.count == 2
    # from 100 to 300: 100 of 200 µs
    assert shares(profile) == {"gemm": 0.5, "gaps": 0.5}


def test_a_span_told_once_for_each_stream_is_one_step(profiles: Any) -> None:
    events = steps(6)
    later = [
        span(event["name"], event["ts"] + 7.0, event["args"]["External id"])
        for event in events
        if "gpu_" in event["cat"]
    ]
    (profile,) = profiles(events + later)
    assert profile.steps is not None and profile.steps.count == 4
    assert profile.steps.p99_seconds == pytest.approx(100e-6)


def test_only_steps_of_the_stage_that_most_are_of_are_measured(profiles: Any) -> None:
    events = []
    for number, stage in enumerate(["EXTEND", "DECODE", "DECODE", "EXTEND", "DECODE", "DECODE"]):
        start = 100.0 * number
        events += [
            span(f"step[{stage} bs=4 toks=9]", start, number),
            kernel(MOE if stage == "EXTEND" else GEMM, start, 50.0),
        ]
    # a draft model's pass is part of the step it drafts for
    events.append(span("step[DRAFT bs=4]", 250.0, 99))
    (profile,) = profiles(events)
    assert profile.steps is not None
    assert (profile.steps.stage, profile.steps.count, profile.steps.left_out) == ("DECODE", 3, 1)
    assert shares(profile) == {"gemm": 0.5, "gaps": 0.5}


def test_without_spans_graph_launches_are_the_steps(profiles: Any) -> None:
    events = [event for event in steps(8) if event["cat"] == "kernel"]
    events += [launch(number, 100.0 * number) for number in range(8)]
    (profile,) = profiles(events)
    assert profile.boundary == "graph"
    assert profile.steps is not None
    assert (profile.steps.count, profile.steps.mean_batch) == (6, None)
    assert shares(profile) == {"attention": 0.2, "moe": 0.3, "indexer": 0.1, "gaps": 0.4}
    (profile,) = profiles(events, graphs_per_step=2)
    assert profile.steps is not None
    assert profile.steps.mean_seconds == pytest.approx(200e-6)


def test_without_any_mark_nothing_is_said_per_step(profiles: Any) -> None:
    (profile,) = profiles([kernel(MOE, 0.0, 30.0), kernel(GEMM, 40.0, 60.0)])
    assert (profile.boundary, profile.steps) == ("none", None)
    assert shares(profile) == {"moe": 0.3, "gemm": 0.6, "gaps": 0.1}
    assert {group.step_seconds for group in profile.groups.values()} == {None}


def test_torch_profilers_own_iterations_are_steps(profiles: Any) -> None:
    events = [event for event in steps(6) if event["cat"] == "kernel"]
    events += [span(f"ProfilerStep#{number}", 1000.0 + 100.0 * number, None) for number in range(6)]
    (profile,) = profiles(events)
    assert profile.steps is not None
    assert (profile.steps.stage, profile.steps.count) == ("ProfilerStep", 4)


def test_gpus_and_ranks_are_told_apart(profiles: Any) -> None:
    one = steps(4)
    other = [event for event in steps(4, indexer=50.0, device=1) if event["cat"] == "kernel"]
    other += [span("step[DECODE bs=1]", 1000.0 + 100.0 * number, number) | {"pid": 1} for number in range(4)]
    first, second = profiles(one + other)
    assert [first.rank, second.rank] == ["device0", "device1"]
    assert (first.groups["indexer"].share, second.groups["indexer"].share) == (pytest.approx(0.1), pytest.approx(0.5))
    (profile,) = profiles(one, "pdwatch-x-1-TP-3-DP-1-EP-3.trace.json")
    assert profile.rank == "tp3-dp1-ep3"


def test_copies_and_fills_count(profiles: Any) -> None:
    copy = kernel("Memcpy DtoH (Device -> Pageable)", 0.0, 25.0) | {"cat": "gpu_memcpy"}
    fill = kernel("Memset (Device)", 25.0, 25.0) | {"cat": "gpu_memset"}
    (profile,) = profiles([copy, fill, kernel(GEMM, 90.0, 10.0)])
    assert shares(profile) == {"copies": 0.5, "gemm": 0.1, "gaps": 0.4}


@pytest.mark.parametrize(
    "events",
    [[], [span("step[DECODE bs=1]", 0.0, 1)], [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]],
    ids=["empty", "spans_only", "cpu_only"],
)
def test_a_trace_without_gpu_work_is_refused(profiles: Any, events: list[dict[str, Any]]) -> None:
    with pytest.raises(TraceInvalid, match="no GPU did anything"):
        profiles(events)


def test_kernels_that_take_no_time_are_refused(profiles: Any) -> None:
    with pytest.raises(TraceInvalid, match="take no time"):
        profiles([kernel(GEMM, 5.0, 0.0)])


def test_the_step_recorded_on_an_h200(rules: KernelRules) -> None:
    (profile,) = profile_trace(DATA / "h200_captured.json.gz", rules, target="h200", unix_seconds=1.0)
    assert profile.boundary == "span"
    assert profile.steps is not None
    # twelve were made: the first, in which the profiler starts, and the last are left out
    assert (profile.steps.count, profile.steps.stage, profile.steps.mean_batch) == (10, "DECODE", 8.0)
    # every fourth begins with a pause of two milliseconds
    assert 0.3e-3 < profile.steps.p50_seconds < 0.7e-3 < 2e-3 < profile.steps.p99_seconds < 4e-3
    assert sum(group.share for group in profile.groups.values()) == pytest.approx(1.0)
    # three products, and one copy to the host besides those within the graph
    assert profile.groups["gemm"].launches_per_step == 3
    assert profile.groups["copies"].launches_per_step == 4
    assert profile.groups["attention"].launches_per_step == 1
    # the top-k ran beside attention, as it was captured
    assert 0.05 < profile.overlap < 0.3
    assert profile.groups[GAPS].share > 0.5


def test_a_trace_without_gpu_of_a_real_torch_is_refused(rules: KernelRules) -> None:
    with pytest.raises(TraceInvalid, match="no GPU did anything"):
        profile_trace(DATA / "cpu_step.json.gz", rules, target="cpu", unix_seconds=1.0)


def reference(
    starts: np.ndarray, ends: np.ndarray, groups: np.ndarray, group_count: int, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Second by second: times are whole numbers."""
    windows = len(edges) - 1
    attributed, busy, idle = np.zeros((windows, group_count)), np.zeros((windows, group_count)), np.zeros(windows)
    for window in range(windows):
        for moment in range(int(edges[window]), int(edges[window + 1])):
            running = groups[(starts <= moment) & (moment < ends)]
            for group in set(running.tolist()):
                attributed[window, group] += 1 / len(set(running.tolist()))
            for group in running:
                busy[window, group] += 1
            idle[window] += not len(running)
    return attributed, busy, idle


@given(
    intervals=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 2)), min_size=1, max_size=12),
    edges=st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True).map(sorted),
    chunk=st.integers(1, 7),
)
def test_the_sweep_agrees_with_counting(intervals: list[tuple[int, int, int]], edges: list[int], chunk: int) -> None:
    starts = np.array([start for start, _, _ in intervals], dtype=float)
    ends = starts + np.array([duration for _, duration, _ in intervals])
    groups = np.array([group for _, _, group in intervals], dtype=np.intp)
    bounds = np.array(edges, dtype=float)
    before = attribution_module._CHUNK
    attribution_module._CHUNK = chunk  # type: ignore[misc]  # small, so that there are several
    try:
        found = attribute(starts, ends, groups, 3, bounds)
    finally:
        attribution_module._CHUNK = before  # type: ignore[misc]  # a Final, put back
    expected = reference(starts, ends, groups, 3, bounds)
    for got, want in zip((found.attributed, found.busy, found.idle), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-9)
