"""The metrics of the kernel profile exporter."""

from __future__ import annotations

from typing import Final

from ..definitions import MetricDefinition

SERIES: Final = ("target", "rank")
GROUP: Final = (*SERIES, "group")

SHARE: Final = MetricDefinition(
    "pdwatch_profile_share_ratio",
    "gauge",
    "Share of the time of the last profile's steps by group of kernels, gaps (nothing ran) and other among them; a "
    "moment in which kernels of several groups run is shared out equally. All groups add up to 1.",
    GROUP,
)
BASELINE: Final = MetricDefinition(
    "pdwatch_profile_baseline_share_ratio",
    "gauge",
    "Median share of the 20 profiles before the last; absent with fewer than 3. Alert on the difference.",
    GROUP,
)
GROUP_SECONDS: Final = MetricDefinition(
    "pdwatch_profile_group_step_seconds", "gauge", "Mean time per step by group, shared out as the share is.", GROUP
)
BUSY_SECONDS: Final = MetricDefinition(
    "pdwatch_profile_group_busy_step_seconds",
    "gauge",
    "Mean sum of kernel durations per step by group: more than the group's time when streams overlap.",
    GROUP,
)
LAUNCHES: Final = MetricDefinition(
    "pdwatch_profile_group_launches_per_step", "gauge", "Mean kernels and copies per step by group.", GROUP
)
STEP_SECONDS: Final = MetricDefinition(
    "pdwatch_profile_step_seconds", "gauge", "Duration of a step; stat: mean, p50, p99.", (*SERIES, "stat")
)
STEPS: Final = MetricDefinition(
    "pdwatch_profile_steps",
    "gauge",
    "Steps measured; absent when nothing marks them. boundary: span (an annotation of SGLang or torch) or graph.",
    (*SERIES, "boundary", "stage"),
)
BATCH: Final = MetricDefinition(
    "pdwatch_profile_batch_requests", "gauge", "Mean batch of the measured steps, where spans tell it.", SERIES
)
OVERLAP: Final = MetricDefinition(
    "pdwatch_profile_overlap_ratio", "gauge", "Part of all kernel time that ran beside other kernels.", SERIES
)
TIMESTAMP: Final = MetricDefinition(
    "pdwatch_profile_timestamp_seconds",
    "gauge",
    "Unix time of the last profile. All other figures are of that moment, cached until the next one.",
    SERIES,
)
KEPT: Final = MetricDefinition("pdwatch_profile_history_profiles", "gauge", "Profiles in the history.", SERIES)
CAPTURES: Final = MetricDefinition(
    "pdwatch_profile_captures_total",
    "counter",
    "Profiles tried on schedule; outcome: success, too_idle, too_busy, load_unknown, trace_invalid, failed.",
    ("target", "outcome"),
)
DEFINITIONS: Final = (
    SHARE,
    BASELINE,
    GROUP_SECONDS,
    BUSY_SECONDS,
    LAUNCHES,
    STEP_SECONDS,
    STEPS,
    BATCH,
    OVERLAP,
    TIMESTAMP,
    KEPT,
    CAPTURES,
)
OUTCOMES: Final = ("success", "too_idle", "too_busy", "load_unknown", "trace_invalid", "failed")
