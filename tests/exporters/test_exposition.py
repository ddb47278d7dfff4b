from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.process_collector import ProcessCollector

from pdwatch.exporters import SELF_DEFINITIONS, Families, MetricDefinition, metric_table
from pdwatch.exporters.exposition import encode
from pdwatch.exporters.gpu import DEFINITIONS as GPU
from pdwatch.exporters.profile import DEFINITIONS as PROFILE

GAUGE = MetricDefinition("test_level_bytes", "gauge", 'A "quoted" \\ help\nof two lines.', ("uuid", "index"))
COUNTER = MetricDefinition("test_events_total", "counter", "Events.", ("b", "a"))
INFO = MetricDefinition("test_device_info", "info", "What it is.", ("name",))
PLAIN = MetricDefinition("test_plain", "gauge", "No labels.")

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
# what an Accept header may ask: 2.42's, 3.x's, none, and nonsense
ACCEPTS = [
    "",
    "text/plain;version=0.0.4",
    OPENMETRICS,
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8,text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
    "text/plain;version=1.0.0;escaping=dots",
    "application/openmetrics-text;version=1.0.0;escaping=values",
    "application/openmetrics-text",
    "*/*",
]


class Registry:
    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


def some_families(values: list[float], labels: list[str]) -> list[Metric]:
    families = Families((GAUGE, COUNTER, INFO, PLAIN))
    for index, value in enumerate(values):
        families.add(GAUGE, value, (labels[index % len(labels)], str(index)))
        families.add(COUNTER, abs(value), (str(index), labels[0]))
    families.add(INFO, 1, (labels[0],))
    families.add(PLAIN, values[0])
    return families.built()


@pytest.mark.parametrize("accept", ACCEPTS)
def test_writes_what_the_library_writes(accept: str) -> None:
    values = [0, 1, -1, 0.1, 1e-9, 123456.0, 1234567.0, 1.5e21, 2**53, 1e300, 150754820096, 3]
    families = some_families(values, ['quo"te', "back\\slash", "new\nline", "plain", "ünïcode"])
    families += ProcessCollector(registry=None).collect()
    encoder, content_type = choose_encoder(accept)
    found = encode(families, accept)
    assert found.content_type == content_type
    assert found.body == encoder(Registry(families))


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    st.lists(st.text(max_size=8), min_size=1, max_size=3),
)
def test_writes_what_the_library_writes_of_anything(values: list[float], labels: list[str]) -> None:
    families = some_families(values, labels)
    assert encode(families, "").body == generate_latest(Registry(families))
    assert encode(families, OPENMETRICS).body == openmetrics.generate_latest(Registry(families))


def test_leaves_to_the_library_what_is_not_plain() -> None:
    registry = CollectorRegistry()
    Counter("requests", "With _created and an exemplar.", registry=registry).inc(exemplar={"trace": "1"})
    Histogram("seconds", "Buckets.", registry=registry).observe(1.0)
    families = list(registry.collect())
    assert encode(families, OPENMETRICS).body == openmetrics.generate_latest(registry)
    assert encode(families, "").body == generate_latest(registry)


def test_a_version_that_is_none_gets_plain_text() -> None:
    assert encode(some_families([1.0], ["x"]), "application/openmetrics-text;version=latest").content_type.startswith(
        "text/plain"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_known_is_never_a_sample(value: float) -> None:
    with pytest.raises(ValueError, match="left out"):
        Families((PLAIN,)).add(PLAIN, value)


@pytest.mark.parametrize(("name", "kind"), [("x_bytes", "counter"), ("x_total", "gauge"), ("x", "info")])
def test_names_say_their_type(name: str, kind: str) -> None:
    with pytest.raises(ValueError, match=name):
        MetricDefinition(name, kind, "…")  # type: ignore[arg-type]  # the kinds are parametrised


ALL = [*SELF_DEFINITIONS, *GPU, *PROFILE]


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_complaint_15_names_follow_prometheus(definition: MetricDefinition) -> None:
    # base units in plural, no unit of a thousandth, a ratio and not a percentage, a sentence of help
    assert definition.name == definition.name.lower()
    assert not any(
        f"_{unit}_" in f"{definition.name}_" for unit in ("ms", "mb", "mib", "percent", "percentage", "mhz", "mw", "mj")
    )
    assert ":" not in definition.name
    assert definition.help.endswith(".") and len(definition.help) > 5
    assert len(set(definition.labels)) == len(definition.labels)


def test_no_name_is_defined_twice() -> None:
    names = [definition.name for definition in ALL]
    assert len(set(names)) == len(names)


def test_the_table_has_a_row_for_each_metric() -> None:
    table = metric_table(ALL)
    assert all(f"| `{definition.name}` | {definition.kind} |" in table for definition in ALL)


def test_the_page_has_the_tables_that_the_code_defines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "exporters.md").read_text(encoding="utf-8")
    for definitions in (SELF_DEFINITIONS, GPU, PROFILE):
        assert metric_table(definitions) in page
