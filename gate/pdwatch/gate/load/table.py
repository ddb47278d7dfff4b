"""The figures of a load run as a table, for a terminal and for a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from pdwatch.gate.load.results import LevelResult, LoadResult, SloResult
from pdwatch.gate.load.run import Progress
from pdwatch.gate.printable import printable
from pdwatch.gate.wording import percent
from pdwatch.loadgen import PhaseSummary

NONE: Final = "–"

# made to fit 80 columns.
_FIRST: Final = ("load", "ok", "TTFT ms\np50/p99")
# of loads with a schedule: what a user waits who comes on time.
_SCHEDULED: Final = "from\nschedule"
_REST: Final = ("TPOT ms\np50/p99", "E2E ms\np50/p99", "tok/s", "req/s", "in\nflight")
_GOOD: Final = "good"


def results_table(levels: Sequence[LevelResult], progress: Progress | None = None) -> Table:
    """A row for each finished level, and one for the level under way. Long words are folded, never cut."""
    has_slo = any(level.slo is not None for level in levels) or (progress is not None and progress.plan.slo is not None)
    has_schedule = any("scheduled_time_to_first_token_seconds" in level.summary.latencies for level in levels)
    scheduled = (_SCHEDULED,) if has_schedule else ()
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in (*_FIRST, *scheduled, *_REST, *((_GOOD,) if has_slo else ()), "verdict"):
        table.add_column(column, justify="left" if column in ("load", "verdict") else "right", overflow="fold")
    for level in levels:
        table.add_row(*_row(level, has_schedule, has_slo))
    if progress is not None and progress.current is not None:
        table.add_row(*_live_row(progress, has_schedule, has_slo))
    return table


def notes(result: LoadResult) -> Iterator[str]:
    """The lines under the table: what is wrong with which level, failures with an example each, the search's answer."""
    for level in result.levels:
        if not level.is_empty:
            yield from _doubts(level)
    for level in result.levels:
        yield from _failures(level)
    slo = next((level.summary.goodput.slo for level in result.levels if level.summary.goodput is not None), None)
    if slo is not None and result.slo_share is not None:
        yield f"SLO: {percent(result.slo_share)} of requests with {slo}"
    if result.capacity is not None:
        yield f"capacity: {result.capacity}"
    if result.failure is not None:
        yield f"the run ended early: {result.failure}"


def _doubts(level: LevelResult) -> Iterator[str]:
    summary = level.summary
    for reason in level.validity.reasons:
        yield f"{level.name} INVALID: {reason}"
    if summary.window.method == "none":
        yield f"{level.name} not steady: {summary.window.detail}; figures are of the whole measured part"
    if summary.without_usage:
        yield (
            f"{level.name}: {summary.without_usage} answers had no usage, so their tokens are not counted "
            "and they have no TPOT"
        )
    if summary.defects:
        shown = ", ".join(f"{code} ×{count}" for code, count in sorted(summary.defects.items()))
        yield f"{level.name}: departures from the protocol: {shown}"


def _failures(level: LevelResult) -> Iterator[str]:
    summary = level.summary
    for outcome, example in sorted(summary.examples.items()):
        count = summary.outcomes.get(outcome, 0)
        where = f"{count} of {summary.sent}" if count else "outside the window"
        yield f"{level.name}: {outcome} {where}, e.g. {example or 'without a word'}"


def _row(level: LevelResult, has_schedule: bool, has_slo: bool) -> tuple[str | Text, ...]:
    summary = level.summary
    return (
        level.name,
        _requests(summary),
        _pair(summary, "time_to_first_token_seconds"),
        *((_pair(summary, "scheduled_time_to_first_token_seconds"),) if has_schedule else ()),
        _pair(summary, "time_per_output_token_seconds"),
        _pair(summary, "end_to_end_seconds"),
        _number(summary.output_tokens_per_second),
        _number(summary.complete_per_second),
        _number(summary.in_flight_mean),
        *((_good(level),) if has_slo else ()),
        _verdict(level),
    )


def _live_row(progress: Progress, has_schedule: bool, has_slo: bool) -> tuple[str | Text, ...]:
    live = progress.live
    good = live.get("good_share")
    return (
        progress.current or "",
        str(progress.ended),
        _joined(live.get("ttft_p50_seconds"), live.get("ttft_p99_seconds")),
        *((NONE,) if has_schedule else ()),
        _joined(live.get("tpot_p50_seconds"), live.get("tpot_p99_seconds")),
        NONE,
        _number(live.get("output_tokens_per_second")),
        _number(live.get("complete_per_second")),
        str(progress.in_flight),
        *((NONE if good is None else percent(good),) if has_slo else ()),
        Text(f"{progress.elapsed_seconds:.0f} s …", "dim"),
    )


def _requests(summary: PhaseSummary) -> str:
    told = [str(summary.complete)]
    if summary.failed:
        told.append(f"{summary.failed} failed")
    if summary.cancelled:
        told.append(f"{summary.cancelled} cancelled")
    return "\n".join(told)


def _pair(summary: PhaseSummary, name: str) -> str:
    figures = summary.latencies.get(name)
    return NONE if figures is None else _joined(figures.p50, figures.p99)


def _joined(one: float | None, other: float | None) -> str:
    return NONE if one is None or other is None else f"{milliseconds(one)}/{milliseconds(other)}"


def _good(level: LevelResult) -> str | Text:
    goodput = level.summary.goodput
    if goodput is None or goodput.share is None:
        return NONE
    style = {SloResult.MET: "green", SloResult.MISSED: "red"}.get(level.slo or SloResult.UNCLEAR, "yellow")
    return Text(f"{percent(goodput.share)}\n{level.slo}", style)


def _verdict(level: LevelResult) -> Text:
    if level.is_empty:
        return Text("no answer", "bold red")
    if not level.validity.is_valid:
        return Text("INVALID", "bold red")
    if level.decision is not None:
        return Text(level.decision.replace("_", " "))
    steady = level.summary.window.method
    return Text("not\nsteady", "yellow") if steady == "none" else Text("valid", "green")


def milliseconds(seconds: float | None) -> str:
    """A duration in ms, with three significant digits."""
    return NONE if seconds is None else _number(seconds * 1000)


def _number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def printable_notes(result: LoadResult) -> list[str]:
    """The notes, safe for a terminal."""
    return [printable(note) for note in notes(result)]
