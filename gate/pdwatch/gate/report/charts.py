"""Pictures over the levels: latency against concurrency, corruption with its bounds."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from pdwatch.gate.names import BASELINE, CANDIDATE
from pdwatch.gate.percentage import percent
from pdwatch.gate.report.scale import Scale, evenly, short, ticks_from_zero
from pdwatch.gate.report.svg import Svg
from pdwatch.gate.verdict import ArmSummary, LevelVerdict, Quantiles

WIDTH = 360
HEIGHT = 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 346, 14, 192


def latency_chart(levels: Sequence[LevelVerdict], metric: str, title: str) -> Markup:
    """p50 and p99 of `metric` (`tpot` or `ttft`) of both arms against concurrency, in milliseconds."""
    svg = Svg(WIDTH, HEIGHT, f"{title} against concurrency")
    largest = max(
        (value * 1000 for level in levels for arm in _arms(level) for value in _values(arm, metric)), default=0.0
    )
    columns = _axes(svg, levels, ticks_from_zero(largest), "ms")
    vertical = Scale(0, ticks_from_zero(largest)[-1], _BOTTOM, _TOP)
    for arm in (BASELINE, CANDIDATE):
        for quantile in ("p99", "p50"):
            points = []
            for level, x in zip(levels, columns, strict=True):
                summary = level.candidate if arm == CANDIDATE else level.baseline
                value = None if summary is None else _quantile(summary, metric, quantile)
                if value is not None:
                    points.append(
                        (x, vertical(value * 1000), f"{arm}, {quantile} at level {level.level}: {value * 1000:.1f} ms")
                    )
            if not points:
                continue
            svg.path([[(x, y) for x, y, _ in points]], f"line {arm} {quantile}")
            for x, y, hint in points:
                svg.circle((x, y), 3.4 if quantile == "p50" else 2.6, f"dot {arm}", hint)
            if arm == CANDIDATE:
                svg.text((points[-1][0] + 8, points[-1][1] + 4), quantile, "label")
    return svg.markup()


def corruption_chart(levels: Sequence[LevelVerdict]) -> Markup:
    """Share of corrupt answers by level with one-sided bounds, both arms side by side, in percent."""
    svg = Svg(WIDTH, HEIGHT, "Share of corrupt answers by level, with bounds")
    rates = [arm.corrupt for level in levels for arm in _arms(level)]
    largest = min(max((rate.upper * 100 for rate in rates if rate.upper is not None), default=1.0), 100.0)
    ticks = ticks_from_zero(largest)
    columns = _axes(svg, levels, ticks, "%")
    vertical = Scale(0, ticks[-1], _BOTTOM, _TOP)
    for level, column in zip(levels, columns, strict=True):
        sides = [(CANDIDATE, level.candidate, -9.0 if level.baseline else 0.0)]
        if level.baseline:
            sides.append((BASELINE, level.baseline, 9.0))
        for arm, summary, offset in sides:
            _interval(svg, column + offset, vertical, arm, summary, level.level)
    return svg.markup()


def _interval(svg: Svg, x: float, vertical: Scale, arm: str, summary: ArmSummary, level: int) -> None:
    rate = summary.corrupt
    if rate.lower is None or rate.upper is None or rate.share is None:
        svg.text((x, _BOTTOM - 6), "?", f"label {arm}", "middle")
        return
    top, bottom, middle = vertical(rate.upper * 100), vertical(rate.lower * 100), vertical(rate.share * 100)
    state = "bad" if rate.count and arm == CANDIDATE else arm
    svg.line((x, bottom), (x, top), f"whisker {state}")
    for y in (top, bottom):
        svg.line((x - 4, y), (x + 4, y), f"whisker {state}")
    hint = (
        f"{arm}, level {level}: {rate.count} of {rate.trials} corrupt, "
        f"rate between {percent(rate.lower)} and {percent(rate.upper)}"
    )
    svg.circle((x, middle), 4.2, f"dot {state}", hint)
    if arm == CANDIDATE:
        svg.text((x, max(top - 5, 10)), f"{rate.count}/{rate.trials}", f"label {state}", "middle")


def _axes(svg: Svg, levels: Sequence[LevelVerdict], ticks: Sequence[float], unit: str) -> list[float]:
    """Grid, tick labels and level names; returns the column of each level."""
    vertical = Scale(0, ticks[-1], _BOTTOM, _TOP)
    for tick in ticks:
        y = vertical(tick)
        svg.line((_LEFT, y), (_RIGHT, y), "grid")
        label = f"{short(tick)} {unit}" if tick == ticks[-1] else short(tick)
        svg.text((_LEFT - 6, y + 4), label, "tick", "end")
    columns = evenly(len(levels), _LEFT, _RIGHT)
    for level, x in zip(levels, columns, strict=True):
        svg.text((x, _BOTTOM + 18), str(level.level), "tick", "middle")
    svg.text(((_LEFT + _RIGHT) / 2, _BOTTOM + 38), "concurrent users", "axis", "middle")
    return columns


def _arms(level: LevelVerdict) -> list[ArmSummary]:
    return [level.candidate] + ([level.baseline] if level.baseline else [])


def _quantiles(summary: ArmSummary, metric: str) -> Quantiles:
    return summary.tpot if metric == "tpot" else summary.ttft


def _quantile(summary: ArmSummary, metric: str, name: str) -> float | None:
    quantiles = _quantiles(summary, metric)
    return quantiles.p50 if name == "p50" else quantiles.p99


def _values(summary: ArmSummary, metric: str) -> list[float]:
    quantiles = _quantiles(summary, metric)
    return [value for value in (quantiles.p50, quantiles.p99) if value is not None]
