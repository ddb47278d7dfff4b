"""The figures of a load run as a table, and the lines under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pdwatch.gate.load.progress import Progress
from pdwatch.gate.load.results import LevelResult, LoadResult, SloResult, last_looks
from pdwatch.gate.load.sheet import Cell, Sheet
from pdwatch.gate.percentage import percent
from pdwatch.gate.printable import printable
from pdwatch.loadgen import PhaseSummary
from pdwatch.loadgen.outcome import NO_USAGE

NONE: Final = "–"

# made to fit 80 columns.
_FIRST: Final = ("load", "ok", "TTFT ms\np50/p99")
# of loads with a schedule: what a user waits who comes on time.
_SCHEDULED: Final = "from\nschedule"
_REST: Final = ("TPOT ms\np50/p99", "E2E ms\np50/p99", "tok/s", "req/s", "in\nflight")
_GOOD: Final = "good"


def results_sheet(levels: Sequence[LevelResult], progress: Progress | None = None) -> Sheet:
    """A row for each finished level, of a search for each load, and one for the level under way."""
    has_slo = any(level.slo is not None for level in levels) or (progress is not None and progress.plan.slo is not None)
    has_schedule = any("scheduled_time_to_first_token_seconds" in level.summary.latencies for level in levels)
    scheduled = (_SCHEDULED,) if has_schedule else ()
    headings = (*_FIRST, *scheduled, *_REST, *((_GOOD,) if has_slo else ()), "verdict")
    rows = [_row(level, has_schedule, has_slo) for level in last_looks(levels)]
    if progress is not None and progress.current is not None:
        rows.append(_live_row(progress, has_schedule, has_slo))
    return Sheet(headings, rows, left=frozenset({0, len(headings) - 1}))


def notes(result: LoadResult) -> Iterator[str]:
    """The lines under the table: what is wrong with which level, failures with an example each, the search's answer."""
    levels = last_looks(result.levels)
    for level in levels:
        if not level.is_empty:
            yield from _doubts(level)
    for level in levels:
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
        yield f"{level.name}{'' if level.is_as_asked else ' INVALID'}: {reason}"
    if summary.window.method == "none":
        yield f"{level.name} not steady: {summary.window.detail}; figures are of the whole measured part"
    if summary.without_usage:
        yield (
            f"{level.name}: {summary.without_usage} answers had no usage, so their tokens are not counted "
            "and they have no TPOT"
        )
    if summary.unrefused:
        yield f"{level.name}: {summary.unrefused} prompts longer than the context were answered, not refused"
    if summary.unsent:
        yield f"{level.name}: {summary.unsent} requests were due and never sent; for the SLO they are not good"
    if summary.defects:
        shown = ", ".join(f"{code} ×{count}" for code, count in sorted(summary.defects.items()))
        yield f"{level.name}: departures from the protocol: {shown}"


def _failures(level: LevelResult) -> Iterator[str]:
    summary = level.summary
    for outcome, example in sorted(summary.examples.items()):
        count = summary.outcomes.get(outcome, 0)
        where = f"{count} of {summary.sent}" if count else "outside the window"
        yield f"{level.name}: {outcome} {where}, e.g. {example or 'without a word'}{_remedy(outcome, example)}"


def _remedy(outcome: str, example: str) -> str:
    return "; --no-usage takes such answers for complete" if (outcome, example) == ("truncated", NO_USAGE) else ""


def _row(level: LevelResult, has_schedule: bool, has_slo: bool) -> tuple[Cell, ...]:
    summary = level.summary
    name = level.name if level.look is None or level.look == 1 else f"{level.name}\n{level.look} looks"
    return (
        Cell(name),
        Cell(_requests(summary)),
        Cell(_pair(summary, "time_to_first_token_seconds")),
        *((Cell(_pair(summary, "scheduled_time_to_first_token_seconds")),) if has_schedule else ()),
        Cell(_pair(summary, "time_per_output_token_seconds")),
        Cell(_pair(summary, "end_to_end_seconds")),
        Cell(_number(summary.output_tokens_per_second)),
        Cell(_number(summary.complete_per_second)),
        Cell(_number(summary.in_flight_mean)),
        *((_good(level),) if has_slo else ()),
        _verdict(level),
    )


def _live_row(progress: Progress, has_schedule: bool, has_slo: bool) -> tuple[Cell, ...]:
    live = progress.live
    good = live.get("good_share")
    return (
        Cell(progress.current or ""),
        Cell(str(progress.ended)),
        Cell(_joined(live.get("ttft_p50_seconds"), live.get("ttft_p99_seconds"))),
        *((Cell(NONE),) if has_schedule else ()),
        Cell(_joined(live.get("tpot_p50_seconds"), live.get("tpot_p99_seconds"))),
        Cell(NONE),
        Cell(_number(live.get("output_tokens_per_second"))),
        Cell(_number(live.get("complete_per_second"))),
        Cell(str(progress.in_flight)),
        *((Cell(NONE if good is None else percent(good)),) if has_slo else ()),
        Cell(f"{progress.elapsed_seconds:.0f} s …", "dim"),
    )


def _requests(summary: PhaseSummary) -> str:
    told = [str(summary.complete)]
    if summary.failed:
        told.append(f"{summary.failed} failed")
    if summary.expected_errors:
        told.append(f"{summary.expected_errors} refused")
    if summary.cancelled:
        told.append(f"{summary.cancelled} cancelled")
    return "\n".join(told)


def _pair(summary: PhaseSummary, name: str) -> str:
    figures = summary.latencies.get(name)
    return NONE if figures is None else _joined(figures.p50, figures.p99)


def _joined(one: float | None, other: float | None) -> str:
    return NONE if one is None or other is None else f"{milliseconds(one)}/{milliseconds(other)}"


def _good(level: LevelResult) -> Cell:
    goodput = level.summary.goodput
    if goodput is None or goodput.share is None:
        return Cell(NONE)
    if level.look is not None:
        # a search decides from all looks; what this one would have said is no second verdict.
        return Cell(percent(goodput.share))
    style = {SloResult.MET: "green", SloResult.MISSED: "red"}.get(level.slo or SloResult.UNCLEAR, "yellow")
    return Cell(f"{percent(goodput.share)}\n{level.slo}", style)


def _verdict(level: LevelResult) -> Cell:
    if level.is_empty:
        return Cell("no answer", "bold red")
    if not level.is_as_asked:
        return Cell("INVALID", "bold red")
    if level.decision is not None:
        return Cell(level.decision.replace("_", " "))
    steady = level.summary.window.method
    return Cell("not\nsteady", "yellow") if steady == "none" else Cell("valid", "green")


def milliseconds(seconds: float | None) -> str:
    """A duration in ms, with three significant digits."""
    return NONE if seconds is None else _number(seconds * 1000)


def _number(value: float | None) -> str:
    if value is None:
        return NONE
    # by what is left of the point once rounded: 9.996 is 10.0.
    texts = (f"{value:.{decimals}f}" for decimals in (2, 1))
    return next((text for text in texts if len(text) <= 4), f"{value:.0f}")


def printable_notes(result: LoadResult) -> list[str]:
    """The notes, safe for a terminal."""
    return [printable(note) for note in notes(result)]
