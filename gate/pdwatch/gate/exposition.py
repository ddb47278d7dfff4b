"""Reader of Prometheus text as servers send it, fast enough for a thousand scrapes of a thousand series.

Series keep their wire names (`sglang:num_running_reqs`); a server that writes `sglang_…` is read under the
colon name, so that one name serves both (observability.md §0.2). What cannot be read is left out and
counted: the text comes from servers under test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAXIMUM_SERIES = 20_000

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r'\\([\\n"])')


@dataclass(frozen=True, slots=True)
class Series:
    """A metric name with its labels, sorted by label name."""

    name: str
    labels: tuple[tuple[str, str], ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """True when the name is equal and every given label has the given value."""
        if name != self.name:
            return False
        own = dict(self.labels)
        return all(own.get(key) == value for key, value in labels.items())


@dataclass(slots=True)
class SeriesTable:
    """Interned series: the text before a value is parsed once, then looked up."""

    series: list[Series] = field(default_factory=list)
    skipped_lines: int = 0
    _by_text: dict[str, int | None] = field(default_factory=dict)
    _by_series: dict[Series, int] = field(default_factory=dict)

    def parse(self, text: str) -> list[tuple[int, float]]:
        """(index into `series`, value) for each sample of an exposition; NaN samples are absent."""
        samples = []
        for line in text.splitlines():
            if not line or line[0] == "#":
                continue
            end = line.rfind("}") + 1 or len(line.split(" ", 1)[0])
            values = line[end:].split()
            index = self._index(line[:end]) if values else None
            try:
                value = float(values[0]) if values else math.nan
            except ValueError:
                index = None
                value = math.nan
            if index is None:
                self.skipped_lines += 1
            elif not math.isnan(value):
                samples.append((index, value))
        return samples

    def _index(self, text: str) -> int | None:
        try:
            return self._by_text[text]
        except KeyError:
            pass
        if len(self._by_text) >= MAXIMUM_SERIES:
            return None
        series = _parse_series(text)
        index = None
        if series is not None:
            index = self._by_series.setdefault(series, len(self.series))
            if index == len(self.series):
                self.series.append(series)
        self._by_text[text] = index
        return index


def _parse_series(text: str) -> Series | None:
    name, brace, rest = text.partition("{")
    if not _NAME.fullmatch(name):
        return None
    if name.startswith("sglang_"):
        name = f"sglang:{name.removeprefix('sglang_')}"
    labels = {}
    inner = rest.removesuffix("}") if brace else ""
    position = 0
    while position < len(inner):
        match = _LABEL.match(inner, position)
        if match is None:
            return None
        labels[match[1]] = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], match[2])
        position = match.end()
    return Series(name, tuple(sorted(labels.items())))
