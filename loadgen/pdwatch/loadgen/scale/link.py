"""Messages that arrive once and in order, whatever becomes of single packets.

Locust's sockets drop packets for a peer that is not connected just then, and when a queue is full. So each message has
a number, is sent again until it is acknowledged, and is delivered when all before it have been.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

Packet = Mapping[str, Any]

MOST_OPEN: Final = 8

_AGAIN_SECONDS: Final = 1.0


class Link:
    """One end. `send` puts a packet on the wire, `deliver` gets each message of the other end."""

    def __init__(
        self,
        send: Callable[[Packet], None],
        deliver: Callable[[Any], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._deliver = deliver
        self._clock = clock
        self._waiting: deque[Any] = deque()
        # sent and not acknowledged yet, the first one's number being `_acknowledged`.
        self._open: deque[Any] = deque()
        self._acknowledged = 0
        self._expected = 0
        self._sent_seconds = 0.0

    @property
    def pending(self) -> int:
        """Messages that the other end has not acknowledged."""
        return len(self._open) + len(self._waiting)

    def put(self, message: Any) -> None:
        """Give the other end a message; returns at once."""
        self._waiting.append(message)
        self._fill()

    def took(self, packet: Packet) -> None:
        """A packet of the other end's has come."""
        if (acknowledged := packet.get("acknowledged")) is not None:
            self._forget(acknowledged)
            return
        if packet["number"] == self._expected:
            self._expected += 1
            self._deliver(packet["message"])
        # also for one that has come before: its acknowledgement was lost.
        self._send({"acknowledged": self._expected})

    def remind(self) -> None:
        """Send again what was not acknowledged in time. To be called now and then."""
        if self._open and self._clock() - self._sent_seconds >= _AGAIN_SECONDS:
            for place, message in enumerate(tuple(self._open)):
                self._wire(self._acknowledged + place, message)

    def _forget(self, acknowledged: int) -> None:
        while self._open and self._acknowledged < acknowledged:
            self._open.popleft()
            self._acknowledged += 1
            self._sent_seconds = self._clock()
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._open) < MOST_OPEN:
            message = self._waiting.popleft()
            self._open.append(message)
            self._wire(self._acknowledged + len(self._open) - 1, message)

    def _wire(self, number: int, message: Any) -> None:
        self._sent_seconds = self._clock()
        self._send({"number": number, "message": message})
