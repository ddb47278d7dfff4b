"""Profiles taken on a schedule, in a thread of their own: a scrape never waits for one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from ..errors import CaptureRefused, ExportersError
from .capture import Target, outcome_of
from .definitions import OUTCOMES
from .history import HistoryFile
from .profile import Profile

_log = logging.getLogger(__name__)


class TakesProfiles(Protocol):
    """What `Capturer` does."""

    def capture(self, target: Target) -> list[Profile]: ...

    def close(self) -> None: ...


class Schedule:
    """Takes a profile of each target, one after the other, every `period_seconds` from `start` to `stop`."""

    def __init__(
        self, capturer: TakesProfiles, targets: Sequence[Target], history: HistoryFile, period_seconds: float
    ) -> None:
        self._capturer = capturer
        self._targets = tuple(targets)
        self._history = history
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._outcomes = {(target.name, outcome): 0 for target in targets for outcome in OUTCOMES}
        self._thread = threading.Thread(target=self._run, name="profiles", daemon=True)

    def start(self) -> None:
        """Begin; the first profiles are taken at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the profile under way, which may take its whole timeout; it is not waited for that long."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Attempts by target and outcome."""
        with self._lock:
            return dict(self._outcomes)

    def take_all(self) -> None:
        """One profile of each target now, counted."""
        for target in self._targets:
            if self._stopped.is_set():
                return
            try:
                self._history.append(self._capturer.capture(target))
                outcome = "success"
            except CaptureRefused as refusal:
                _log.info("%s", refusal)
                outcome = refusal.outcome
            except (ExportersError, OSError) as error:
                _log.warning("%s: %s", target.name, error)
                outcome = outcome_of(error)
            with self._lock:
                self._outcomes[target.name, outcome] += 1

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.take_all()
            self._stopped.wait(self._period_seconds)
        self._capturer.close()
