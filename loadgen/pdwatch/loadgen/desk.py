"""Where the driver meets its clerk: requests come from here, and what became of them goes back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gevent.event import AsyncResult, Event

from .errors import LoadgenError, PlanError
from .feeder import Feeder
from .helper import Helper
from .messages import Asking, Batch, Closing, LiveFigures, Opened, Opening, PhaseFigures, Recorded
from .meter import Meter
from .pipe import Child
from .poller import Poller
from .recorder import Recorder
from .share import Share

_LOOK_SECONDS: Final = 0.05


class Desk:
    """The clerk's counterpart in the driver; `live` are the phase's figures as they were told last."""

    def __init__(self, child: Child, poller: Poller, meter: Meter, share: Share, directory: Path) -> None:
        self.live: Mapping[str, Any] = {}
        self._poller = poller
        self._figures = AsyncResult()
        self._opened = Event()
        self._helper = Helper(
            child,
            poller,
            {
                Opened: lambda _: self._opened.set(),
                Batch: lambda batch: self.feeder.received(batch),
                Recorded: lambda recorded: self.recorder.received(recorded),
                LiveFigures: self._live,
                PhaseFigures: lambda figures: self._figures.set(figures),
            },
        )
        self.feeder = Feeder(self._helper, share, meter.note_made_late)
        self.recorder = Recorder(self._helper, meter)
        self._helper.error_class = PlanError
        self._helper.send(Opening(str(directory)))

    @property
    def process(self) -> int:
        """The clerk's process id."""
        return self._helper.process

    def open(self) -> None:
        """Wait until the clerk has its files and its port. Raises PlanError when it cannot have them.

        Raises LoadgenError when the poller fails.
        """
        while not self._opened.is_set():
            self._helper.check()
            if self._poller.error is not None:
                raise LoadgenError(f"the poller failed: {self._poller.error!r}") from self._poller.error
            self._opened.wait(_LOOK_SECONDS)
        self._helper.error_class = LoadgenError

    def ask(self, asking: Asking) -> None:
        """Ask for the phase's figures as they are by now; `live` has them soon."""
        self._helper.send(asking)

    def conclude(self, closing: Closing) -> AsyncResult:
        """The PhaseFigures to come, once everything before has been recorded."""
        self._figures = AsyncResult()
        self._helper.send(closing)
        return self._figures

    def check(self) -> None:
        """Raises LoadgenError when the clerk has failed."""
        self._helper.check()

    def close(self) -> None:
        """Wait until everything stands in the journal. Raises LoadgenError when the clerk has failed."""
        self._helper.close()

    def _live(self, live: LiveFigures) -> None:
        self.live = live.figures
