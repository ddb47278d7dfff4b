"""Requests made ready ahead of the users' need, by a process of their own."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import gevent

from .feeding import Batch, Order
from .helper import Helper
from .plan import Phase, Plan
from .prepared import Prepared, prepare
from .transcript import Label

# what every user may take at once is always in store twice.
_STORE_PER_USER: Final = 2
_SMALLEST_STORE: Final = 16
_FILL_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.005


@dataclass(slots=True)
class _Shelf:
    """The requests of one label: made ready, ordered, and taken so far."""

    ready: deque[Prepared] = field(default_factory=deque)
    ordered: int = 0
    taken: int = 0


class Feeder:
    """Hands out the requests of the phase that was begun last."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bearer_token = plan.bearer_token()
        self._phase = plan.phases[0]
        self._shelves = {label: _Shelf() for label in Label}
        self._helper = Helper("pdwatch.loadgen.feeding", (), self._receive)
        self._helper.send(plan)

    def begin(self, phase: Phase) -> None:
        """Wait until a phase's first requests are ready. Raises LoadgenError when their maker has failed."""
        self._shelves = {label: _Shelf() for label in Label}
        self._phase = phase
        for label in Label:
            self._order(label)
        first = self._shelves[Label.WARMUP if phase.warmup_seconds else Label.MEASURED]
        deadline_seconds = time.monotonic() + _FILL_SECONDS
        while len(first.ready) < first.ordered and time.monotonic() < deadline_seconds:
            self._helper.check()
            gevent.sleep(_POLL_SECONDS)

    def take(self, label: Label) -> Prepared:
        """The label's next request, made on the spot in the rare case that none is ready."""
        shelf = self._shelves[label]
        sequence = shelf.taken
        shelf.taken += 1
        while shelf.ready and shelf.ready[0].sequence < sequence:
            shelf.ready.popleft()
        if shelf.ordered - shelf.taken < self._store:
            self._order(label)
        if shelf.ready and shelf.ready[0].sequence == sequence:
            return shelf.ready.popleft()
        return prepare(self._plan, self._phase, label, sequence, self._bearer_token)

    def check(self) -> None:
        """Raises LoadgenError when the maker of requests has failed."""
        self._helper.check()

    def close(self) -> None:
        """End the maker of requests."""
        self._helper.close()

    @property
    def _store(self) -> int:
        return max(_SMALLEST_STORE, _STORE_PER_USER * self._phase.level)

    def _order(self, label: Label) -> None:
        shelf = self._shelves[label]
        count = self._store if shelf.ordered == 0 else max(_SMALLEST_STORE // 2, self._phase.level // 2)
        self._helper.send(Order(self._phase.index, label, shelf.ordered, count))
        shelf.ordered += count

    def _receive(self, batch: Batch) -> None:
        if batch.phase_index == self._phase.index:
            self._shelves[batch.label].ready.extend(batch.requests)
