"""Our end of a child process that takes work off the loop that stamps arrivals.

No thread serves it, for each would share the interpreter's lock with the loop: messages go out and come in when the
poller says that they can, after the reads of the load itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from gevent.event import Event

from .errors import LoadgenError
from .pipe import Child, Failure, Unframer, frame
from .poller import READABLE, WRITABLE, Poller

_MOST_MESSAGES: Final = 8
_END: Final = object()


class Helper:
    """Exchanges messages with a child. `receivers` says who takes its answers, by their type.

    `error_class` is what its failure is raised as.
    """

    def __init__(self, child: Child, poller: Poller, receivers: Mapping[type, Callable[[Any], None]]) -> None:
        self.process = child.process
        self.error_class: type[LoadgenError] = LoadgenError
        self._pair = child.pair
        self._poller = poller
        self._receivers = receivers
        self._urgent: deque[Any] = deque()
        self._outbox: deque[Any] = deque()
        self._unsent: memoryview | None = None
        self._unframer = Unframer()
        self._is_sending = False
        self._is_closing = False
        self._has_ended = Event()
        self._error: str | None = None
        self._pair.setblocking(False)
        self._descriptor = self._pair.fileno()
        poller.add(self._descriptor, READABLE, self._event)

    def send(self, message: Any, *, is_urgent: bool = False) -> None:
        """Give the child a message; returns at once. An urgent one goes before those that wait."""
        (self._urgent if is_urgent else self._outbox).append(message)
        if not self._is_sending and not self._has_ended.is_set():
            self._is_sending = True
            self._poller.change(self._descriptor, READABLE | WRITABLE)

    def check(self) -> None:
        """Raises LoadgenError when the child has failed."""
        if self._error is not None:
            raise self.error_class(self._error)

    def close(self) -> None:
        """Let the child finish what it was given, and end. Raises LoadgenError when it failed."""
        self._is_closing = True
        self.send(_END)
        if self._poller.error is None:
            self._has_ended.wait()
        else:
            self._send_the_rest()
        self._pair.close()
        _, status = os.waitpid(self.process, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and self._error is None:
            self._error = f"the helper process ended with status {code}"
        self.check()

    def _event(self, events: int) -> None:
        self._poller.later(self._receive if events & ~WRITABLE else self._send)

    def _send(self) -> None:
        if self._has_ended.is_set():
            return
        for _ in range(_MOST_MESSAGES):
            if self._unsent is None and not self._next():
                return
            assert self._unsent is not None
            try:
                count = self._pair.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:
                # a child that is gone is told of by the end of what it sends.
                self._stop_sending()
                return
            self._unsent = self._unsent[count:] or None

    def _next(self) -> bool:
        queue = self._urgent or self._outbox
        if not queue:
            self._stop_sending()
            return False
        message = queue.popleft()
        if message is _END:
            self._stop_sending()
            self._pair.shutdown(socket.SHUT_WR)
            return False
        self._unsent = memoryview(frame(message))
        return True

    def _stop_sending(self) -> None:
        self._is_sending = False
        self._poller.change(self._descriptor, READABLE)

    def _receive(self) -> None:
        if self._has_ended.is_set():
            return
        try:
            count = self._pair.recv_into(self._poller.buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._ended()
            return
        with memoryview(self._poller.buffer) as view:
            for message in self._unframer.feed(view[:count]):
                if isinstance(message, Failure):
                    self._error = message.text
                else:
                    self._receivers[type(message)](message)

    def _ended(self) -> None:
        if not self._is_closing and self._error is None:
            self._error = "the helper process ended early"
        self._poller.remove(self._descriptor)
        self._has_ended.set()

    def _send_the_rest(self) -> None:
        """Do without the poller, which has failed."""
        self._pair.setblocking(True)
        with contextlib.suppress(OSError):
            while self._unsent is not None or self._next():
                assert self._unsent is not None
                self._pair.sendall(self._unsent)
                self._unsent = None
            while self._pair.recv_into(self._poller.buffer):
                pass
