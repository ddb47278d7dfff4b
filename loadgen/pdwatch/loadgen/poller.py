"""One epoll for all sockets of this process, read in gevent's hub.

A read costs a receive, a stamp and an append, and no switch of greenlets: a greenlet runs again only when what it
waits for is over. The stamp is the time of arrival as the kernel noted it. All sockets that are ready are read before
any such greenlet runs, so that a response that is over delays the end of no other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import gevent
import gevent.monkey

from .arrival import NOTE_BYTES, ArrivalClock

READ_BYTES: Final = 256 * 1024
READABLE: Final = 1
WRITABLE: Final = 4

_MOST_EVENTS: Final = 2048

# after so many calls, which may each send a request, what has arrived meanwhile is read first.
_CALLS: Final = 8

_epoll: Any = gevent.monkey.get_original("select", "epoll")


# as a socket's recvmsg_into: how many bytes came, and what the kernel noted of them.
ReceiveNoted = Callable[[list[bytearray], int], tuple[int, list[tuple[int, int, bytes]], int, Any]]


class Reading:
    """A response under way. `look` is called when the bytes so far end in `tail` or are over `most_bytes`.

    `closed` is called when the server has closed the connection, `failed` when a read raised OSError. All three are
    called in the hub, must not block, and end the response by `Poller.wake`.
    """

    __slots__ = (
        "add_size",
        "add_stamp",
        "closed",
        "failed",
        "look",
        "most_bytes",
        "raw",
        "receive",
        "receive_noted",
        "tail",
    )

    receive: Callable[[bytearray], int]
    receive_noted: ReceiveNoted
    raw: bytearray
    add_stamp: Callable[[float], None]
    add_size: Callable[[int], None]
    tail: bytes
    most_bytes: int
    look: Callable[[], None]
    closed: Callable[[], None]
    failed: Callable[[OSError], None]


class Poller:
    """Watches sockets for the greenlets of one hub."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._hub: Any = gevent.get_hub()
        self._sockets = _epoll()
        self._readings: dict[int, Reading] = {}
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._calls: deque[Callable[[], Any]] = deque()
        self._is_running = False
        self.buffer = bytearray(READ_BYTES)
        self._arrivals = ArrivalClock()
        self._watcher: Any = self._hub.loop.io(self._sockets.fileno(), 1)
        self._watcher.start(self._ready)

    def add(self, descriptor: int, events: int, handler: Callable[[int], None]) -> None:
        """Watch a descriptor. `handler` is called in the hub with the events that hold, and must not block."""
        self._handlers[descriptor] = handler
        self._sockets.register(descriptor, events)

    def change(self, descriptor: int, events: int) -> None:
        """Watch a descriptor for other events."""
        self._sockets.modify(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """Stop watching a descriptor, which must still be open."""
        del self._handlers[descriptor]
        self._readings.pop(descriptor, None)
        self._sockets.unregister(descriptor)

    def begin(self, descriptor: int, reading: Reading) -> None:
        """Read what arrives on a watched descriptor; its handler is called for other events only."""
        self._readings[descriptor] = reading

    def end(self, descriptor: int) -> None:
        """Leave what arrives on a descriptor to its handler again."""
        self._readings.pop(descriptor, None)

    def wait(self) -> None:
        """Sleep until the calling greenlet is woken."""
        self._hub.switch()

    def wake(self, greenlet: Any) -> None:
        """Let a greenlet that sleeps in `wait` run after the reads under way. Call it once a sleep."""
        self.later(greenlet.switch)

    def later(self, call: Callable[[], Any]) -> None:
        """Call this in the hub after the reads under way."""
        self._calls.append(call)
        if not self._is_running and len(self._calls) == 1:
            self._hub.loop.run_callback(self._ready)

    def timer(self, seconds: float) -> Any:
        """A timer to be used with `arm`, as often as one likes; `close` it in the end."""
        return self._hub.loop.timer(seconds, seconds)

    def arm(self, timer: Any, ring: Callable[[], None]) -> None:
        """Let a timer call `ring` in the hub when its whole time is over, unless it is stopped before."""
        # restarts it with all its time, where `start` would go on with what was left of it.
        timer.again(self._rung, timer, ring)

    def close(self) -> None:
        """Watch nothing any more."""
        self._watcher.stop()
        self._watcher.close()
        self._sockets.close()

    def _rung(self, timer: Any, ring: Callable[[], None]) -> None:
        timer.stop()
        ring()

    def _ready(self) -> None:
        if self._is_running:
            return
        self._is_running = True
        calls = self._calls
        try:
            self._read()
            while calls:
                for _ in range(min(_CALLS, len(calls))):
                    calls.popleft()()
                self._read()
        except Exception as error:  # the hub would print it and call again, for ever: the run is to end with it
            self.error = self.error or error
            self._watcher.stop()
        finally:
            self._is_running = False

    def _read(self) -> None:
        readings, buffer, clock, arrived = self._readings, self.buffer, time.monotonic, self._arrivals.seconds
        buffers, view = [buffer], memoryview(buffer)
        ready = self._sockets.poll(0, _MOST_EVENTS)
        is_noted = self._arrivals.look()
        for descriptor, events in ready:
            reading = readings.get(descriptor)
            if reading is None or events != READABLE:
                self._other(descriptor, events)
                reading = readings.get(descriptor)
                if reading is None or events == WRITABLE:
                    continue
            try:
                if is_noted:
                    count, notes, _, _ = reading.receive_noted(buffers, NOTE_BYTES)
                    seconds = arrived(notes)
                else:
                    count = reading.receive(buffer)
                    seconds = clock()
            except OSError as error:
                reading.failed(error)
                continue
            if not count:
                reading.closed()
                continue
            reading.add_stamp(seconds)
            reading.add_size(count)
            raw = reading.raw
            raw += view[:count]
            if raw.endswith(reading.tail) or len(raw) > reading.most_bytes:
                reading.look()

    def _other(self, descriptor: int, events: int) -> None:
        # what an earlier handler of the same batch has removed is still in it.
        handler = self._handlers.get(descriptor)
        if handler is not None:
            handler(events)
