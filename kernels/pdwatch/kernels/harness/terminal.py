"""A report on a terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pdwatch.kernels.harness.checks import CHECKS
from pdwatch.kernels.harness.outcome import CheckResult, Outcome, Report
from pdwatch.kernels.harness.registry import Catalogue
from pdwatch.kernels.harness.report import clean

_STYLES = {
    Outcome.PASS: ("pass", "green"),
    Outcome.FAIL: ("FAIL", "bold red"),
    Outcome.NOT_RUN: ("not run", "yellow"),
    Outcome.NOT_APPLICABLE: ("–", "dim"),
}
# a table in a pipe must not be cut to a terminal's width
_PIPE_WIDTH = 400


def print_report(report: Report) -> None:
    """What failed and what was not run, a line for each kernel, and the verdict."""
    console = _console()
    table = _table("kernel", "passed", "failed", "not run", "does not apply")
    for kernel, results in report.kernels():
        counts = [sum(result.outcome is outcome for result in results) for outcome in _STYLES]
        table.add_row(Text(_line(kernel)), *(Text(str(count) if count else "–") for count in counts))
    console.print(table)
    for outcome in (Outcome.FAIL, Outcome.NOT_RUN):
        _print_details(console, report, outcome)
    console.print(Text(f"{report.verdict}: {report.headline}", style="bold"))


def progress_line(result: CheckResult) -> None:
    """One line on stderr for each check that has something to say."""
    if result.outcome in (Outcome.PASS, Outcome.FAIL):
        words, _ = _STYLES[result.outcome]
        detail = f"  {_line(result.detail)}" if result.detail else ""
        print(f"{words:5} {_line(result.kernel)} {result.check} ({result.seconds:.1f} s){detail}", file=sys.stderr)


def print_catalogue(catalogue: Catalogue, checks: bool) -> None:
    """The kernels that are known, and with `checks` what is asked of them."""
    console = _console()
    table = _table("kernel", "family", "from", "")
    for entry in catalogue.entries:
        family = entry.kernel.family.value if entry.kernel is not None else "–"
        table.add_row(*(Text(_line(text)) for text in (entry.name, family, entry.source, entry.problem)))
    console.print(table)
    if checks:
        listed = _table("check", "guards against")
        for check in CHECKS:
            listed.add_row(Text(check.name), Text(check.guards))
        console.print()
        console.print(listed)


def _print_details(console: Console, report: Report, outcome: Outcome) -> None:
    """Results of one outcome; checks of a kernel that share a reason share a line."""
    words, style = _STYLES[outcome]
    for kernel, results in report.kernels():
        reasons: dict[str, list[str]] = {}
        for result in results:
            if result.outcome is outcome:
                reasons.setdefault(result.detail, []).append(result.check)
        for reason, names in reasons.items():
            console.print(
                Text(f"{words} {_line(kernel)}: {', '.join(names)}: ", style).append(_line(reason), "default")
            )


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _line(text: str) -> str:
    """On one line, without characters that a terminal would act upon."""
    whole = clean(" ".join(text.split()))
    return "".join(character if character.isprintable() else "\ufffd" for character in whole)
