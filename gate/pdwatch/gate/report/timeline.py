"""The run over time, the prefill side and the decode side apart, from the servers' own metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from markupsafe import Markup

from pdwatch.gate.names import BASELINE, CANDIDATE
from pdwatch.gate.report.scale import Scale, runs, short, ticks_from_zero
from pdwatch.gate.report.svg import Svg
from pdwatch.gate.server_samples import Line, ServerSamples

WIDTH = 960
_LEFT, _RIGHT = 204, 948
_BAND_HEIGHT = 30
_PANEL_HEIGHT = 58
_PANEL_GAP = 20
# a scrape or two may be late; a longer silence is a gap in the line
_LONGEST_GAP_SECONDS = 3.5


@dataclass(frozen=True, slots=True)
class Band:
    """A phase as it ran: its arm and level, and the span of its measured requests in seconds of the run."""

    arm: str
    level: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One row of the timeline: what it shows, in which unit, and how to read it for an arm."""

    title: str
    unit: str
    read: Callable[[ServerSamples, str], Line]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the deployment with its picture; `picture` is None when it was not sampled."""

    title: str
    picture: Markup | None


def _gauges(role: str, *names: str) -> Callable[[ServerSamples, str], Line]:
    return lambda samples, arm: reduce(_add, (samples.gauge(arm, role, name) for name in names))


def _tokens(role: str, mode: str) -> Callable[[ServerSamples, str], Line]:
    return lambda samples, arm: samples.rate(arm, role, "sglang:realtime_tokens_total", {"mode": mode})


def _mean(role: str, name: str, factor: float) -> Callable[[ServerSamples, str], Line]:
    return lambda samples, arm: _times(samples.mean(arm, role, name), factor)


def _pool(samples: ServerSamples, arm: str) -> Line:
    full = samples.gauge(arm, "decode", "sglang:full_token_usage")
    return _times(full if len(full.values) else samples.gauge(arm, "decode", "sglang:token_usage"), 100)


PREFILL_PANELS = (
    Panel(
        "Queued or in transfer",
        "requests",
        _gauges(
            "prefill",
            "sglang:num_queue_reqs",
            "sglang:num_prefill_bootstrap_queue_reqs",
            "sglang:num_prefill_inflight_queue_reqs",
        ),
    ),
    Panel("Prompt tokens computed", "tokens/s", _tokens("prefill", "prefill_compute")),
    Panel("KV transfer, mean", "ms", _mean("prefill", "sglang:kv_transfer_latency_ms", 1)),
)
DECODE_PANELS = (
    Panel("Running requests (batch)", "", _gauges("decode", "sglang:num_running_reqs")),
    Panel(
        "Queued or in transfer",
        "requests",
        _gauges(
            "decode",
            "sglang:num_queue_reqs",
            "sglang:num_decode_prealloc_queue_reqs",
            "sglang:num_decode_transfer_queue_reqs",
        ),
    ),
    Panel("Tokens decoded", "tokens/s", _tokens("decode", "decode")),
    Panel("ITL, mean (server)", "ms", _mean("decode", "sglang:inter_token_latency_seconds", 1000)),
    Panel("KV pool in use", "%", _pool),
)


def timeline(samples: ServerSamples, bands: Sequence[Band]) -> tuple[Side, Side]:
    """Prefill side and decode side, on the same time axis."""
    end = max([band.end_seconds for band in bands] + [float(samples.seconds.max(initial=1.0))])
    start = min([band.start_seconds for band in bands], default=0.0)
    start = max(0.0, start - 4.0)
    return (
        Side("Prefill", _side(samples, PREFILL_PANELS, bands, start, end, "Prefill side over time")),
        Side("Decode", _side(samples, DECODE_PANELS, bands, start, end, "Decode side over time")),
    )


def _side(
    samples: ServerSamples, panels: Sequence[Panel], bands: Sequence[Band], start: float, end: float, title: str
) -> Markup | None:
    lines = [{arm: _clip(panel.read(samples, arm), start, end) for arm in (BASELINE, CANDIDATE)} for panel in panels]
    if not any(len(line.values) for by_arm in lines for line in by_arm.values()):
        return None
    height = _BAND_HEIGHT + len(panels) * (_PANEL_HEIGHT + _PANEL_GAP) + 26
    svg = Svg(WIDTH, height, title)
    horizontal = Scale(start, end, _LEFT, _RIGHT)
    _draw_bands(svg, bands, horizontal, height - 30)
    for index, (panel, by_arm) in enumerate(zip(panels, lines, strict=True)):
        top = _BAND_HEIGHT + index * (_PANEL_HEIGHT + _PANEL_GAP)
        _draw_panel(svg, panel, by_arm, horizontal, top)
    for tick in ticks_from_zero(end, 8):
        if start <= tick <= end:
            svg.text((horizontal(tick), height - 10), f"{short(tick)} s", "tick", "middle")
    return svg.markup()


def _draw_bands(svg: Svg, bands: Sequence[Band], horizontal: Scale, bottom: float) -> None:
    levels = sorted({band.level for band in bands})
    for band in bands:
        x = horizontal(band.start_seconds)
        width = horizontal(band.end_seconds) - x
        hint = f"{band.arm}, level {band.level}: {band.start_seconds:.0f} to {band.end_seconds:.0f} s"
        svg.rectangle(x, 20, width, bottom - 20, f"band {band.arm}", hint)
    for level in levels:
        own = [band for band in bands if band.level == level]
        left = horizontal(min(band.start_seconds for band in own))
        right = horizontal(max(band.end_seconds for band in own))
        label = f"level {level}" if right - left > 52 else str(level)
        svg.text(((left + right) / 2, 13), label, "tick strong", "middle")


def _draw_panel(svg: Svg, panel: Panel, by_arm: dict[str, Line], horizontal: Scale, top: float) -> None:
    largest = max((float(line.values.max(initial=0.0)) for line in by_arm.values()), default=0.0)
    ticks = ticks_from_zero(largest, 2)
    vertical = Scale(0, ticks[-1], top + _PANEL_HEIGHT, top)
    svg.text((0, top + 14), panel.title, "panel")
    svg.text((0, top + 30), panel.unit, "tick")
    for tick in ticks:
        y = vertical(tick)
        svg.line((_LEFT, y), (_RIGHT, y), "grid")
        if tick in (ticks[0], ticks[-1]):
            svg.text((_LEFT - 6, y + 4), short(tick), "tick", "end")
    if not any(len(line.values) for line in by_arm.values()):
        svg.text(((_LEFT + _RIGHT) / 2, top + _PANEL_HEIGHT / 2 + 4), "not reported by the server", "tick", "middle")
    for arm, line in by_arm.items():
        points = [(float(x), float(y)) for x, y in zip(line.seconds, line.values, strict=True)]
        parts = runs(points, _LONGEST_GAP_SECONDS)
        svg.path([[(horizontal(x), vertical(y)) for x, y in part] for part in parts], f"trace {arm}")


def _clip(line: Line, start: float, end: float) -> Line:
    inside = (line.seconds >= start) & (line.seconds <= end)
    return Line(line.seconds[inside], line.values[inside])


def _times(line: Line, factor: float) -> Line:
    return Line(line.seconds, line.values * factor)


def _add(left: Line, right: Line) -> Line:
    """Sum of two gauges; a server without the second one has just the first."""
    if not len(right.values):
        return left
    if not len(left.values):
        return right
    seconds = np.union1d(left.seconds, right.seconds)
    values = np.zeros(len(seconds))
    for line in (left, right):
        values[np.searchsorted(seconds, line.seconds)] += line.values
    return Line(seconds, values)
