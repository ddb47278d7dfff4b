"""Hands ended exchanges to the clerk, counts how they ended, and brings back what goes on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gevent.event import AsyncResult

from .exchange import Exchange
from .helper import Helper
from .messages import Ended, Recorded
from .meter import Meter
from .prepared import Prepared
from .transcript import Label, Outcome


class Recorder:
    """`outcomes` counts the requests in the journal, by phase index, label and outcome."""

    def __init__(self, helper: Helper, meter: Meter) -> None:
        self.outcomes: Counter[tuple[int, Label, Outcome]] = Counter()
        self._helper = helper
        self._meter = meter
        # by request id: its bytes, and who waits to go on after it.
        self._open: dict[str, tuple[int, Any]] = {}
        self._bytes = 0

    @property
    def pending(self) -> int:
        """Exchanges handed over that are not in the journal yet."""
        return len(self._open)

    def put(self, request_id: str, label: Label, user: int, exchange: Exchange) -> None:
        """Hand over an exchange; returns at once."""
        self._put(request_id, label, user, exchange, None)

    def put_and_wait(self, request_id: str, label: Label, user: int, exchange: Exchange) -> Prepared | None:
        """Hand over an exchange; the next request of its conversation, for which the caller waits."""
        answer = AsyncResult()
        self._put(request_id, label, user, exchange, answer)
        following: Prepared | None = answer.get()
        return following

    def received(self, recorded: Recorded) -> None:
        """Count a request that stands in the journal."""
        size, answer = self._open.pop(recorded.request_id)
        self._bytes -= size
        self.outcomes[recorded.phase_index, recorded.label, recorded.outcome] += 1
        if answer is not None:
            answer.set(recorded.next)

    def _put(self, request_id: str, label: Label, user: int, exchange: Exchange, answer: Any) -> None:
        size = len(exchange.raw)
        self._open[request_id] = (size, answer)
        self._bytes += size
        self._meter.note_recording(len(self._open), self._bytes)
        self._helper.send(Ended(request_id, label, user, exchange))
