"""A minimal SVG writer: every attribute and text passes through one escaping function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

Point = tuple[float, float]


class Svg:
    """A picture in a coordinate system of `width` × `height`; styled by the report's style sheet."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._parts = [
            Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">').format(
                _number(width), _number(height), title
            )
        ]

    def rectangle(self, x: float, y: float, width: float, height: float, css: str, hint: str = "") -> None:
        """A rectangle; `hint` is shown when the pointer rests on it."""
        self._element("rect", {"x": x, "y": y, "width": max(width, 0), "height": max(height, 0), "class": css}, hint)

    def line(self, start: Point, end: Point, css: str) -> None:
        """A straight line."""
        self._element("line", {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1], "class": css})

    def path(self, runs: Iterable[Sequence[Point]], css: str) -> None:
        """Polylines; a run of one point is drawn as a short stroke."""
        commands = []
        for run in runs:
            points = list(run) if len(run) > 1 else [run[0], (run[0][0] + 0.1, run[0][1])]
            commands.append("M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points))
        if commands:
            self._element("path", {"d": "".join(commands), "class": css})

    def circle(self, center: Point, radius: float, css: str, hint: str = "") -> None:
        """A dot."""
        self._element("circle", {"cx": center[0], "cy": center[1], "r": radius, "class": css}, hint)

    def text(self, position: Point, content: str, css: str, anchor: str = "start") -> None:
        """A line of text."""
        attributes = {"x": position[0], "y": position[1], "class": css, "text-anchor": anchor}
        self._parts.append(Markup("<text{}>{}</text>").format(_attributes(attributes), content))

    def markup(self) -> Markup:
        """The finished picture."""
        return Markup("").join([*self._parts, Markup("</svg>")])

    def _element(self, name: str, attributes: dict[str, object], hint: str = "") -> None:
        if hint:
            body = Markup("<{}{}><title>{}</title></{}>").format(name, _attributes(attributes), hint, name)
        else:
            body = Markup("<{}{}/>").format(name, _attributes(attributes))
        self._parts.append(body)


def _attributes(attributes: dict[str, object]) -> Markup:
    return Markup("").join(
        Markup(' {}="{}"').format(key, _number(value) if isinstance(value, int | float) else value)
        for key, value in attributes.items()
    )


def _number(value: float) -> str:
    return escape(f"{value:.1f}".removesuffix(".0"))
