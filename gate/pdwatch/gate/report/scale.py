"""Round axis ticks and the mapping from values to picture coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.end - self.start)


def ticks_from_zero(largest: float, wanted: int = 4) -> list[float]:
    """0 and up to about `wanted` round steps that reach `largest`."""
    if not largest > 0 or not math.isfinite(largest):
        return [0.0, 1.0]
    rough = largest / wanted
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999)
    count = math.ceil(largest / step - 1e-9)
    return [index * step for index in range(count + 1)]


def short(value: float) -> str:
    """A tick label: `0`, `0.5`, `20`, `1.5k`."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


def evenly(count: int, start: float, end: float) -> list[float]:
    """Centres of `count` equal columns between two coordinates."""
    width = (end - start) / max(count, 1)
    return [start + width * (index + 0.5) for index in range(count)]


def runs(values: Sequence[tuple[float, float]], longest_gap: float) -> list[list[tuple[float, float]]]:
    """Split points by their first coordinate wherever more than `longest_gap` lies between two."""
    parts: list[list[tuple[float, float]]] = []
    for point in values:
        if parts and point[0] - parts[-1][-1][0] <= longest_gap:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts
