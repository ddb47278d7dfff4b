"""What the leader tells a driver, one JSON object a line on its standard input.

`phase` brings a phase to get ready for, `begin` the time at which all begin, `wave` leave for the next wave, `release`
that the measured requests of all drivers have ended, `finish` that nothing more follows. Times are on the driver's own
monotonic clock.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gevent.event import Event

from ..errors import LoadgenError
from ..poller import READABLE, Poller

Order = Mapping[str, Any]


class Orders:
    """Reads them without a thread. `on_wave` gets the waves at once, in the hub; `on_lost` is called at the end of all.

    `changed` is set whenever there is something new.
    """

    def __init__(
        self, descriptor: int, poller: Poller, on_wave: Callable[[Order], None], on_lost: Callable[[], None]
    ) -> None:
        self.changed = Event()
        self._descriptor = descriptor
        self._poller = poller
        self._on_wave = on_wave
        self._on_lost = on_lost
        self._orders: deque[Order] = deque()
        self._text = b""
        self._is_watching = True
        os.set_blocking(descriptor, False)
        poller.add(descriptor, READABLE, self._readable)

    def has(self, kind: str) -> bool:
        """Whether the next order is of this kind. Raises LoadgenError when it is of another one."""
        if not self._orders:
            return False
        if self._orders[0]["do"] != kind:
            raise LoadgenError(f"the leader said {self._orders[0]['do']!r} where {kind!r} was due")
        return True

    def peek(self) -> str | None:
        """The kind of the next order; None when there is none."""
        return self._orders[0]["do"] if self._orders else None

    def take(self) -> Order:
        """The next order; there must be one."""
        return self._orders.popleft()

    def close(self) -> None:
        """Read no more."""
        if self._is_watching:
            self._is_watching = False
            self._poller.remove(self._descriptor)

    def _readable(self, events: int) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        if not data:
            self.close()
            self._on_lost()
            self.changed.set()
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["do"] == "wave":
                self._on_wave(order)
            else:
                self._orders.append(order)
        self.changed.set()
