"""The table of definitions in the documentation is the one in the code."""

from __future__ import annotations

from pathlib import Path

from pdwatch.loadgen.definitions import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "loadgen.md"
BEGINS = "<!-- metrics: made from METRICS, held by tests/loadgen/figures/test_definitions.py -->\n\n"
ENDS = "\n<!-- end of metrics -->"


def table() -> str:
    rows = [
        f"| {metric.title} | `{metric.name}` | {metric.unit} | {metric.formula} | {metric.absent_when} |\n"
        for metric in METRICS
    ]
    return "".join(["| metric | field | unit | formula | no value when |\n", "|---|---|---|---|---|\n", *rows])


def test_the_page_has_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    _, begins, rest = page.partition(BEGINS)
    assert begins, "the page lacks the marker of the table"
    # to mend it, put this between the two markers
    assert rest.partition(ENDS)[0] == table()


def test_no_cell_breaks_the_table() -> None:
    assert not any("|" in text for metric in METRICS for text in (metric.title, metric.formula, metric.absent_when))
