"""A timer of the kernel that rings through the poller, exact where gevent's own rounds up to a millisecond."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import time
from collections.abc import Callable
from typing import Final

from .poller import READABLE, Poller

_NONBLOCKING: Final = 0o4000
_CLOSE_ON_EXEC: Final = 0o2000000
_ABSOLUTE: Final = 1


class _Times(ctypes.Structure):
    # struct itimerspec: the interval, then the first time, each in seconds and nanoseconds.
    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("first_seconds", ctypes.c_long),
        ("first_nanoseconds", ctypes.c_long),
    )


_libc: Final = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Calls `ring` in the hub at the times it is set to; a time that has passed rings at once."""

    def __init__(self, poller: Poller, ring: Callable[[], None]) -> None:
        """Raises OSError."""
        self._poller = poller
        self._ring = ring
        self._descriptor = _checked(_libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCKING | _CLOSE_ON_EXEC))
        poller.add(self._descriptor, READABLE, self._rang)

    def set(self, at_seconds: float, every_seconds: float = 0.0) -> None:
        """Ring at a time on the monotonic clock, and from then on `every_seconds` unless that is 0."""
        # a first time of 0 would disarm it.
        first_fraction, first = math.modf(max(at_seconds, 1e-9))
        interval_fraction, interval = math.modf(every_seconds)
        times = _Times(int(interval), int(interval_fraction * 1e9), int(first), max(1, int(first_fraction * 1e9)))
        _checked(_libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(times), None))

    def close(self) -> None:
        """Ring no more."""
        self._poller.remove(self._descriptor)
        os.close(self._descriptor)

    def _rang(self, events: int) -> None:
        # set anew meanwhile, it has nothing to tell.
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)
            self._ring()


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
