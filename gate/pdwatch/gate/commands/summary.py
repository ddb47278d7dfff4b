"""The verdict on the terminal: data on stdout, readable without colour."""

from __future__ import annotations

import sys

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pdwatch.gate.commands.output import write_out
from pdwatch.gate.percentage import percent
from pdwatch.gate.printable import printable
from pdwatch.gate.run_folder import RunFolder
from pdwatch.gate.verdict import LevelVerdict, Result, Verdict

_STYLES = {Result.PASS: "bold green", Result.FAIL: "bold red", Result.INCONCLUSIVE: "bold yellow"}
_PIPE_WIDTH = 160


def print_verdict(folder: RunFolder, verdict: Verdict, as_json: bool) -> None:
    """Print the verdict for people, or as one JSON object with the run's paths and the exit code.

    Never fails because the reader closed the pipe: the exit code stays the verdict's.
    """
    if as_json:
        document = {
            **verdict.model_dump(mode="json"),
            "exit_code": verdict.exit_code,
            "run_folder": str(folder.path.absolute()),
            "report": str(folder.report.absolute()),
        }
        write_out(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    # rendered first and written as a whole: rich itself exits 1 on a closed pipe
    with console.capture() as rendered:
        console.print(_levels_table(verdict))
        console.print()
        console.print(Text(verdict.result.value, _STYLES[verdict.result]), Text(printable(verdict.headline)))
        for check in verdict.reasons:
            where = "run" if check.level is None else f"level {check.level}"
            name = check.signature or check.name
            console.print(Text(f"  {check.result.value:<12} {where:<9} {name}: {printable(check.text)}"))
        console.print(Text(f"report: {printable(str(folder.report))}"))
    write_out(rendered.get())


def _levels_table(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "users",
        "verdict",
        "batch",
        "scored",
        "corrupt",
        "rate at most",
        "TPOT p50",
        "TTFT p50",
        "TPOT ratio",
    ):
        table.add_column(name, justify="left" if name == "verdict" else "right")
    for level in verdict.levels:
        table.add_row(*_row(level))
    return table


def _row(level: LevelVerdict) -> tuple[str | Text, ...]:
    one = level.candidate
    tpot = next((comparison for comparison in level.comparisons if comparison.metric == "tpot"), None)
    return (
        str(level.level),
        Text(level.result.value, _STYLES[level.result]),
        "–" if one.running_batch is None else str(one.running_batch),
        f"{one.scored}/{one.measured}",
        str(one.corrupt.count),
        "–" if one.corrupt.upper is None else percent(one.corrupt.upper),
        _milliseconds(one.tpot.p50),
        _milliseconds(one.ttft.p50),
        "–" if tpot is None or tpot.ratio is None else f"×{tpot.ratio:.2f} {tpot.verdict.value}",
    )


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f} ms"
