"""`report.html`: one file that opens offline, without scripts and without references to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import BaseLoader, Environment, StrictUndefined, Template
from markupsafe import Markup

from pdwatch.gate.percentage import percent
from pdwatch.gate.report.charts import corruption_chart, latency_chart
from pdwatch.gate.report.evidence import failure_groups
from pdwatch.gate.report.facts import run_facts, server_facts
from pdwatch.gate.report.timeline import Band, timeline
from pdwatch.gate.report.visible import plain
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.run_folder import RunRecord
from pdwatch.gate.server_samples import ServerSamples
from pdwatch.gate.verdict import Verdict
from pdwatch.gate.wording import MEANING


def render_report(record: RunRecord, verdict: Verdict, rows: Sequence[RequestRow], samples: ServerSamples) -> str:
    """The whole document. All texts from servers are escaped; what a browser would hide is made visible."""
    measured = [row for row in rows if row.measured]
    return _template().render(
        record=record,
        verdict=verdict,
        style=Markup(_resource("report.css")),
        tpot=latency_chart(verdict.levels, "tpot", "TPOT"),
        ttft=latency_chart(verdict.levels, "ttft", "TTFT"),
        corruption=corruption_chart(verdict.levels),
        sides=timeline(samples, bands(measured)),
        groups=failure_groups(rows),
        meaning=MEANING,
        measured=len(measured),
        requests=len(rows),
        run_facts=list(run_facts(record)),
        server_facts=list(server_facts(record)),
        failed_scrapes=samples.failed_scrapes,
    )


def bands(measured: Sequence[RequestRow]) -> list[Band]:
    """The phases as they ran, told from their measured requests."""
    phases: dict[int, list[RequestRow]] = {}
    for row in measured:
        phases.setdefault(row.phase, []).append(row)
    return [
        Band(
            arm=members[0].arm,
            level=members[0].level,
            start_seconds=min(row.sent_seconds for row in members),
            end_seconds=max(row.sent_seconds for row in members),
        )
        for _, members in sorted(phases.items())
    ]


@cache
def _template() -> Template:
    environment = Environment(
        loader=BaseLoader(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # every text, wherever it comes from, is freed of what a browser would hide or act upon
        finalize=lambda value: plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters["milliseconds"] = _milliseconds
    environment.filters["percent"] = percent
    return environment.from_string(_resource("report.html.j2"))


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms".replace(",", "\u202f")


def _resource(name: str) -> str:
    return (files("pdwatch.gate") / "report" / "templates" / name).read_text(encoding="utf-8")
