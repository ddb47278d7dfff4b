"""One piece of work shared by all who ask while it runs, and no longer waited for than it may take.

Work that hangs in the kernel cannot be ended from here: those who wait give up, and nobody begins it a second time
before the first has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from .errors import CollectionTimedOut

Result = TypeVar("Result")


class _Run(Generic[Result]):
    def __init__(self) -> None:
        self.started = time.monotonic()
        self.ended = threading.Event()
        self.waiting = 0
        self.result: Result | None = None
        self.failure: BaseException | None = None


class SharedFlight(Generic[Result]):
    """Run `work` in a thread of its own, at most once at a time, for at most `limit_seconds` from the callers' view."""

    def __init__(self, work: Callable[[], Result], limit_seconds: float) -> None:
        self._work = work
        self._limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._run: _Run[Result] | None = None

    def join(self, patience_seconds: float | None = None) -> Result:
        """The result of the run under way, or of a new one.

        Raises what `work` raised, and CollectionTimedOut when the run has not ended within its limit, or within this
        caller's own patience.
        """
        with self._lock:
            run = self._run
            if run is None:
                run = self._run = _Run()
                threading.Thread(target=self._perform, args=(run,), name="collection", daemon=True).start()
            run.waiting += 1
        now = time.monotonic()
        left = run.started + self._limit_seconds - now
        if patience_seconds is not None:
            left = min(left, patience_seconds)
        if not run.ended.wait(max(left, 0.0)):
            raise CollectionTimedOut(time.monotonic() - run.started)
        if run.failure is not None:
            raise run.failure
        return run.result  # type: ignore[return-value]  # a run that ended without failure has its result

    @property
    def waiting(self) -> int:
        """How many have joined the run under way."""
        with self._lock:
            return 0 if self._run is None else self._run.waiting

    def wait_until_idle(self, seconds: float) -> bool:
        """Whether no run is under way after at most `seconds`."""
        with self._lock:
            run = self._run
        return run is None or run.ended.wait(seconds)

    def _perform(self, run: _Run[Result]) -> None:
        try:
            run.result = self._work()
        except BaseException as failure:
            run.failure = failure
        with self._lock:
            self._run = None
        run.ended.set()
