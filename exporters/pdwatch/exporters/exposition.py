"""Families as bytes, in the format that an Accept header asks for.

prometheus_client's own writers escape, sort and format every sample anew, which costs more than reading eight GPUs.
The writers here give the same bytes (held by a test) for metric and label names of the old alphabet, which all of
ours are; for what they do not speak, the library's are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from .definitions import LabelSet, escaped

_TEXT_TYPES = {
    "counter": "counter",
    "gauge": "gauge",
    "info": "gauge",
    "histogram": "histogram",
    "summary": "summary",
}
_TEXT_SUFFIXES = {"counter": "_total", "info": "_info"}


@dataclass(frozen=True, slots=True)
class Exposition:
    """A body and its Content-Type."""

    body: bytes
    content_type: str


def encode(families: Sequence[Metric], accept: str) -> Exposition:
    """Write families in the format that `accept` asks for; text 0.0.4 when it asks for none that we know."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # a version that is none
        encoder, content_type = choose_encoder("")
    if _escapes(content_type) or any(map(_needs_library, families)):
        body = encoder(_Fixed(families))
    elif content_type.startswith("text/plain"):
        body = _text(families).encode()
    elif content_type.startswith("application/openmetrics-text; version=1.0.0"):
        body = _openmetrics(families).encode()
    else:
        body = encoder(_Fixed(families))
    return Exposition(body, content_type)


class _Fixed:
    """Families under the interface of a registry."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _needs_library(family: Metric) -> bool:
    # exemplars, time stamps and native histograms are never ours, but a family may come from the library
    return family.type not in _TEXT_TYPES or any(
        sample.timestamp is not None or sample.exemplar is not None or sample.name.endswith("_created")
        for sample in family.samples
    )


def _escapes(content_type: str) -> bool:
    # `dots` and `values` rewrite even our names
    return "escaping=" in content_type and not content_type.endswith(("escaping=underscores", "escaping=allow-utf-8"))


def _text(families: Sequence[Metric]) -> str:
    lines: list[str] = []
    for family in families:
        name = family.name + _TEXT_SUFFIXES.get(family.type, "")
        help_text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {name} {help_text}\n# TYPE {name} {_TEXT_TYPES[family.type]}\n")
        lines += _samples(family)
    return "".join(lines)


def _openmetrics(families: Sequence[Metric]) -> str:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {escaped(family.documentation)}\n# TYPE {family.name} {family.type}\n")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}\n")
        lines += _samples(family)
    lines.append("# EOF\n")
    return "".join(lines)


def _samples(family: Metric) -> list[str]:
    return [f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}\n" for sample in family.samples]


def _labels(labels: Mapping[str, str]) -> str:
    # a family of the library's own collectors has plain dictionaries
    return (labels if isinstance(labels, LabelSet) else LabelSet(labels)).text


def _number(value: float) -> str:
    text = repr(float(value))
    if text.find(".", 0, 7) > 0:
        # Go writes these as Python does
        return text
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # the library leaves it untyped
