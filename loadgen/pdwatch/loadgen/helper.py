"""A process that takes work off the loop that stamps arrivals.

Parent and child exchange pickles over the child's standard input and output. The parent's ends are served by native
threads, which hold the interpreter's lock only to pickle. A child ends when its input does: also when its parent was
killed, after finishing what it had been given.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from _queue import SimpleQueue
from collections.abc import Callable
from typing import Any, Final

from gevent.threadpool import ThreadPool

from .errors import LoadgenError
from .pipe import Failure, messages

_RUN: Final = "import sys; from {module} import main; sys.exit(main(sys.argv[1:]))"
_END: Final = object()


class Helper:
    """A child running `main(ARGUMENTS)` of a module. `received` is called in a thread with each message it sends."""

    def __init__(self, module: str, arguments: tuple[str, ...], received: Callable[[Any], None]) -> None:
        self._module = module
        self._received = received
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._is_closing = False
        self._error: str | None = None
        child_input, self._input = os.pipe()
        self._output, child_output = os.pipe()
        try:
            self._process = subprocess.Popen(
                # not `-m`: pickle would find the module's classes in __main__, which is another module here.
                [sys.executable, "-P", "-c", _RUN.format(module=module), *arguments],
                stdin=child_input,
                stdout=child_output,
            )
        finally:
            os.close(child_input)
            os.close(child_output)
        self._pool = ThreadPool(2)
        self._threads: list[Any] = [self._pool.spawn(self._send_all), self._pool.spawn(self._receive_all)]

    def send(self, message: Any) -> None:
        """Give the child a message; returns at once."""
        self._outbox.put(message)

    def check(self) -> None:
        """Raises LoadgenError when the child has failed."""
        if self._error is not None:
            raise LoadgenError(self._error)

    def close(self) -> None:
        """Let the child finish what it was given, and end. Raises LoadgenError when it failed."""
        self._is_closing = True
        self._outbox.put(_END)
        for thread in self._threads:
            thread.get()
        status = self._process.wait()
        self._pool.kill()
        if status != 0 and self._error is None:
            self._error = f"{self._module} ended with status {status}"
        self.check()

    def _send_all(self) -> None:
        # a child that is gone is told of by the other thread; what was meant for it has nowhere to go.
        with contextlib.suppress(BrokenPipeError), open(self._input, "wb") as file:
            while (message := self._outbox.get()) is not _END:
                pickle.dump(message, file, protocol=pickle.HIGHEST_PROTOCOL)
                if self._outbox.empty():
                    file.flush()

    def _receive_all(self) -> None:
        try:
            with open(self._output, "rb") as file:
                for message in messages(file):
                    if isinstance(message, Failure):
                        self._error = f"{self._module} failed: {message.text}"
                    else:
                        self._received(message)
        except Exception as error:  # nobody waits for this thread before the end: `check` tells of it
            self._error = f"an answer of {self._module} cannot be read: {error!r}"
        if not self._is_closing and self._error is None:
            self._error = f"{self._module} ended early"
