"""Signals as exceptions, so that every `with` block ends in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pdwatch.gate.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise Interrupted in the main thread at the first SIGINT, SIGTERM or SIGHUP; later ones are ignored meanwhile.

    In another thread, where Python delivers no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in _SIGNALS}

    def interrupt(number: int, frame: FrameType | None) -> None:
        # an impatient second Ctrl-C must not break the orderly stop
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    for number in _SIGNALS:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
