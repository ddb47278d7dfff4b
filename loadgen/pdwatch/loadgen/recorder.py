"""Hands ended exchanges to the process that records them, and counts how they ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .exchange import Exchange
from .helper import Helper
from .recording import Ended, Recorded
from .transcript import Label, Outcome


class Recorder:
    """`outcomes` counts the requests in the journal, by phase index, label and outcome."""

    def __init__(self, path: Path) -> None:
        self.outcomes: Counter[tuple[int, Label, Outcome]] = Counter()
        self._put = 0
        self._helper = Helper("pdwatch.loadgen.recording", (str(path),), self._receive)

    def put(self, facts: bytes, user: int, exchange: Exchange) -> None:
        """Hand over an exchange; returns at once."""
        self._put += 1
        self._helper.send(Ended(facts, user, exchange))

    @property
    def pending(self) -> int:
        """Exchanges handed over that are not in the journal yet."""
        return self._put - self.outcomes.total()

    def check(self) -> None:
        """Raises LoadgenError when recording has failed."""
        self._helper.check()

    def close(self) -> None:
        """Wait until everything stands in the journal. Raises LoadgenError when recording has failed."""
        self._helper.close()

    def _receive(self, recorded: Recorded) -> None:
        self.outcomes[recorded.phase_index, recorded.label, recorded.outcome] += 1
