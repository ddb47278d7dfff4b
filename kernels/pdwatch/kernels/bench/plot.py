"""The results as one SVG file: small panels, time against batch or context, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pdwatch.kernels.bench.cases import FLAT, Family
from pdwatch.kernels.bench.document import Document
from pdwatch.kernels.bench.measure import Row
from pdwatch.kernels.bench.problem import EAGER, OURS

_WIDTH, _HEIGHT, _COLUMNS = 400, 280, 3
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 30, 12, 40
_ROOF = "least at the roof"
# from Okabe and Ito's palette, which colour-blind readers tell apart
_COLOURS = {OURS: "#0072b2", EAGER: "#999999", _ROOF: "#000000"}
_OTHERS = ("#d55e00", "#009e73", "#cc79a7")

Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Series by name over one axis."""

    title: str
    axis: str
    series: dict[str, Points]


def svg(document: Document) -> str:
    """An SVG document that opens offline."""
    panels = _panels(document)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    others = iter(_OTHERS * len(names))
    colours = {name: _COLOURS.get(name) or next(others) for name in names}
    width = _WIDTH * _COLUMNS
    height = _HEIGHT * -(-len(panels) // _COLUMNS) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="#ffffff"/>'
    ]
    for place, name in enumerate(names):
        parts.append(f'<text x="{20 + 190 * place}" y="20" fill="{colours[name]}">● {escape(name)}</text>')
    for number, panel in enumerate(panels):
        across, down = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT + 30
        parts += [f'<g transform="translate({across},{down})">', *_drawn(panel, colours), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panels(document: Document) -> list[Panel]:
    """Time by batch for cases without a context, else by context for the smallest, middle and largest batch."""
    panels = []
    for (family, case), rows in document.groups().items():
        if case == FLAT:
            continue
        if family == Family.SPARSE_MLA.value and not rows[0].context:
            panels.append(Panel(f"{family}, {case}", "batch", _series(document, [(row.batch, row) for row in rows])))
            continue
        batches = sorted({row.batch for row in rows})
        for batch in sorted({batches[0], batches[len(batches) // 2], batches[-1]}):
            chosen = [(row.context, row) for row in rows if row.batch == batch]
            panels.append(Panel(f"{family}, {case}, B={batch}", "context, tokens", _series(document, chosen)))
    return panels


def _series(document: Document, placed: Sequence[tuple[int, Row]]) -> dict[str, Points]:
    series: dict[str, Points] = {}
    for place, row in sorted(placed, key=lambda each: each[0]):
        for name, value in row.microseconds.items():
            series.setdefault(name, []).append((place, value))
        floor = document.roof.microseconds(row.least_bytes, row.operations)
        series.setdefault(_ROOF, []).append((place, floor))
    return series


def _drawn(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    places = sorted({place for points in panel.series.values() for place, _ in points})
    times = [time for points in panel.series.values() for _, time in points]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = max(high, low + 1)

    def x(place: int) -> float:
        span = math.log2(places[-1] / places[0]) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(place / places[0]) / span

    def y(time: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - math.log10(time)) / (high - low)

    yield f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>'
    for power in range(low, high + 1):
        level = y(10.0**power)
        yield f'<path d="M{_LEFT},{level:.1f} H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{10.0**power:g} us</text>'
    for place in places:
        label = f"{place >> 10}K" if place >= 1 << 10 else str(place)
        yield f'<text x="{x(place):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{label}</text>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{escape(panel.axis)}</text>'
    for name, points in panel.series.items():
        path = " ".join(f"{x(place):.1f},{y(time):.1f}" for place, time in points)
        dashes = ' stroke-dasharray="4 3"' if name == _ROOF else ""
        yield f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.5"{dashes}/>'
        yield from (f'<circle cx="{x(p):.1f}" cy="{y(t):.1f}" r="2" fill="{colours[name]}"/>' for p, t in points)
