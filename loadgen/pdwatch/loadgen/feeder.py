"""Requests made ready ahead of the users' need, by the clerk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gevent.event import Event

from .helper import Helper
from .messages import Batch, Beginning, Order
from .plan import Phase
from .prepared import Prepared
from .share import Share
from .transcript import Label

# beside one request for each user, which is what all of them may take at once.
_RESERVE: Final = 16
_FILL_SECONDS: Final = 60.0
# how often a wait for requests looks whether it is still worth it.
_LOOK_SECONDS: Final = 0.05


@dataclass(slots=True)
class _Shelf:
    """The requests of one label: ready ones by sequence, how many were ordered and taken, the `most` ever needed."""

    first: int = 0
    most: int | None = None
    ordered: int = 0
    taken: int = 0
    ready: dict[int, Prepared] = field(default_factory=dict)


class Feeder:
    """Hands out the requests of the phase that was begun last, of which this driver sends its share."""

    def __init__(self, helper: Helper, share: Share, made_late: Callable[[], None]) -> None:
        self._helper = helper
        self.share = share
        self._made_late = made_late
        self._phase_index = -1
        self._store = 0
        self._shelves: dict[Label, _Shelf] = {}
        self._arrived = Event()

    def begin(
        self,
        phase: Phase,
        pair: int,
        most: dict[Label, int | None],
        first: dict[Label, int],
        is_stopped: Callable[[], bool],
    ) -> None:
        """Wait until a phase's first requests are ready, or the run is stopped.

        Raises LoadgenError when their maker has failed. `most` are the requests of each label that will ever be taken,
        None if nobody knows; `first` is the place among this driver's requests at which a label begins, 0 unless it is
        named.
        """
        self._phase_index = phase.index
        users = self.share.count(phase.level)
        self._store = users + _RESERVE
        self._shelves = {label: _Shelf(first.get(label, 0), most.get(label)) for label in most}
        # these two wait behind what is still to be recorded of the phase before; later orders do not.
        self._helper.send(Beginning(phase, pair))
        for label in most:
            self._order(label, self._store, is_urgent=False)
        deadline_seconds = time.monotonic() + _FILL_SECONDS
        while any(len(shelf.ready) < shelf.ordered for shelf in self._shelves.values()):
            self._helper.check()
            if is_stopped() or time.monotonic() >= deadline_seconds:
                return
            self._arrived.clear()
            self._arrived.wait(_LOOK_SECONDS)

    def take(self, label: Label) -> Prepared:
        """The label's next request; the caller waits in the rare case that it is not ready.

        Raises LoadgenError when their maker has failed.
        """
        shelf = self._shelves[label]
        sequence = self.share.number(shelf.first + shelf.taken)
        shelf.taken += 1
        missing = self._store - (shelf.ordered - shelf.taken)
        if missing >= max(1, self._store // 4):
            self._order(label, missing)
        if sequence not in shelf.ready:
            self._made_late()
        while sequence not in shelf.ready:
            self._helper.check()
            self._arrived.clear()
            self._arrived.wait()
        return shelf.ready.pop(sequence)

    def received(self, batch: Batch) -> None:
        """Put requests on their shelf."""
        if batch.phase_index == self._phase_index:
            ready = self._shelves[batch.label].ready
            ready.update((request.sequence, request) for request in batch.requests)
            self._arrived.set()

    def _order(self, label: Label, count: int, *, is_urgent: bool = True) -> None:
        shelf = self._shelves[label]
        if shelf.most is not None:
            count = min(count, shelf.most - shelf.ordered)
        if count > 0:
            first = self.share.number(shelf.first + shelf.ordered)
            sequences = range(first, first + count * self.share.of, self.share.of)
            self._helper.send(Order(label, sequences), is_urgent=is_urgent)
            shelf.ordered += count
