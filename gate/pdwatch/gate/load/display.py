"""A load run while it runs, on stderr: a table that lives on a terminal, lines in a pipe, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from pdwatch.gate.console import PlainTalk
from pdwatch.gate.load.progress import Progress
from pdwatch.gate.load.sheet import rich_table
from pdwatch.gate.load.table import milliseconds, results_sheet
from pdwatch.gate.printable import printable


class Display(Protocol):
    """Shows progress."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """One line that stays."""

    def show(self, progress: Progress) -> None:
        """The run has come that far."""


def open_display(quiet: bool) -> Display:
    """The display that fits stderr."""
    if quiet:
        return QuietDisplay()
    return LiveDisplay() if sys.stderr.isatty() else PlainDisplay()


class QuietDisplay:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        return None

    def show(self, progress: Progress) -> None:
        return None


class PlainDisplay(QuietDisplay):
    """A line when a level begins and ends, and one every ten seconds between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._talk = PlainTalk(clock)
        self._current: str | None = None

    def say(self, text: str) -> None:
        self._talk.say(text)

    def show(self, progress: Progress) -> None:
        if progress.current is None:
            if self._current is not None and progress.levels:
                level = progress.levels[-1]
                self._talk.end(f"{level.summary.complete} answered, {level.summary.failed} failed")
            self._current = None
        elif progress.current != self._current:
            self._current = progress.current
            self._talk.begin(f"{progress.current}, {progress.note}" if progress.note else progress.current)
        else:
            first, pace = (milliseconds(progress.live.get(f"{name}_p50_seconds")) for name in ("ttft", "tpot"))
            note = f"{progress.ended} ended, {progress.in_flight} in flight, TTFT p50 {first} ms, TPOT p50 {pace} ms"
            self._talk.advance(progress.ended, note)


class LiveDisplay(QuietDisplay):
    """The table, growing."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._current: str | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def show(self, progress: Progress) -> None:
        if progress.current != self._current:
            self._current = progress.current
            if progress.current is not None and progress.note:
                self.say(f"{progress.current}, {progress.note}")
        self._live.update(rich_table(results_sheet(progress.levels, progress)), refresh=True)
