"""Talk to whoever started the run: a rich display on a terminal, plain lines otherwise. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from pdwatch.gate.printable import printable

_SECONDS_BETWEEN_ADVANCES = 10.0


class Talk(Protocol):
    """What a session tells while it works."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """One line that stays."""

    def begin(self, text: str, total: float | None = None) -> None:
        """Begin a step; `total` is its size in any unit, None when unknown."""

    def advance(self, done: float, note: str = "") -> None:
        """The step has come to `done` of its total."""

    def end(self, note: str = "") -> None:
        """The step is finished."""


def open_talk(quiet: bool = False) -> Talk:
    """The display that fits stderr."""
    if quiet:
        return QuietTalk()
    return RichTalk() if sys.stderr.isatty() else PlainTalk()


class QuietTalk:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        return None

    def begin(self, text: str, total: float | None = None) -> None:
        return None

    def advance(self, done: float, note: str = "") -> None:
        return None

    def end(self, note: str = "") -> None:
        return None


class PlainTalk(QuietTalk):
    """Lines with seconds since the start, for logs and pipes: each step's begin and end, and where it stands every
    ten seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_seconds = clock()
        self._spoke_seconds = self._started_seconds
        self._step = ""

    def say(self, text: str) -> None:
        self._spoke_seconds = self._clock()
        print(f"[{self._spoke_seconds - self._started_seconds:6.1f} s] {printable(text)}", file=sys.stderr, flush=True)

    def begin(self, text: str, total: float | None = None) -> None:
        self._step = text
        self.say(f"{text} …")

    def advance(self, done: float, note: str = "") -> None:
        if self._clock() - self._spoke_seconds >= _SECONDS_BETWEEN_ADVANCES:
            self.say(f"{self._step}: {note or f'{done:g}'}")

    def end(self, note: str = "") -> None:
        self.say(f"{self._step}{f': {note}' if note else ''}")


class RichTalk:
    """A live line with bar and elapsed time under the lines that stay."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, visible=False, note="")
        self._step = ""
        self._step_started_seconds = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def begin(self, text: str, total: float | None = None) -> None:
        self._step = text
        self._step_started_seconds = time.monotonic()
        self._progress.reset(self._task, description=_escape(text), total=total, visible=True, note="")

    def advance(self, done: float, note: str = "") -> None:
        self._progress.update(self._task, completed=done, note=_escape(note))

    def end(self, note: str = "") -> None:
        self._progress.update(self._task, visible=False)
        seconds = time.monotonic() - self._step_started_seconds
        self.say(f"{self._step}{f': {note}' if note else ''} ({seconds:.1f} s)")


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))
