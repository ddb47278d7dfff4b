"""What a metric is, said once: from a definition come its family, its help text and its row in the docs.

A value that is not known has no sample: `Families.add` takes finite numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from prometheus_client import Metric
from prometheus_client.samples import Sample

Kind = Literal["gauge", "counter", "info"]
_SUFFIX = {"gauge": "", "counter": "_total", "info": "_info"}


# compared and hashed by identity: a definition stands once, and is looked up for every sample
@dataclass(frozen=True, slots=True, eq=False)
class MetricDefinition:
    """One metric. `name` is what Prometheus stores, `_total` or `_info` included; `help` says unit and meaning."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.endswith(_SUFFIX[self.kind]):
            raise ValueError(f"a {self.kind} is named …{_SUFFIX[self.kind]}, not {self.name}")
        if self.kind == "gauge" and self.name.endswith("_total"):
            raise ValueError(f"{self.name} is named like a counter")

    @property
    def family_name(self) -> str:
        """The name without the suffix that its type adds."""
        return self.name.removesuffix(_SUFFIX[self.kind])


class LabelSet(dict[str, str]):
    """Labels of a sample, with the text that every format writes for them. Shared by many samples: never changed."""

    __slots__ = ("text",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        parts = (f'{name}="{escaped(value)}"' for name, value in sorted(labels.items()))
        self.text = f"{{{','.join(parts)}}}" if labels else ""


# few sets of labels occur again and again, in every family and at every scrape
@lru_cache(maxsize=8192)
def label_set(names: tuple[str, ...], values: tuple[str, ...]) -> LabelSet:
    """The labels with these names and values. Raises ValueError when they are not as many."""
    return LabelSet(dict(zip(names, values, strict=True)))


def escaped(text: str) -> str:
    """A label value or a help text as OpenMetrics quotes it."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Families:
    """The families of one collection, in the order of their definitions; one without a sample does not appear."""

    def __init__(self, definitions: Iterable[MetricDefinition]) -> None:
        self._metrics = {definition: _family(definition) for definition in definitions}

    def add(self, definition: MetricDefinition, value: float, labels: Sequence[str] = ()) -> None:
        """Add a sample, with label values in the definition's order. Raises ValueError for NaN and infinities."""
        if not math.isfinite(value):
            raise ValueError(f"{definition.name} is {value}: what is not known is left out")
        named = label_set(definition.labels, tuple(labels))
        self._metrics[definition].samples.append(Sample(definition.name, named, value, None, None, None))

    def built(self) -> list[Metric]:
        """The families that have samples."""
        return [metric for metric in self._metrics.values() if metric.samples]


def _family(definition: MetricDefinition) -> Metric:
    return Metric(definition.family_name, definition.help, definition.kind)


def metric_table(definitions: Iterable[MetricDefinition]) -> str:
    """The definitions as a Markdown table."""
    rows = [
        f"| `{definition.name}` | {definition.kind} | {', '.join(f'`{label}`' for label in definition.labels) or '–'} "
        f"| {definition.help.replace('|', chr(92) + '|')} |"
        for definition in definitions
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""])
