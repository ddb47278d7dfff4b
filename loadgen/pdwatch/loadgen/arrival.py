"""When bytes reached this machine, as the kernel saw them, on the monotonic clock.

A stamp taken after a read is late by however long the process had to wait for its turn. Linux notes the wall clock's
time when a segment arrives (SO_TIMESTAMPNS, socket(7)) and gives it out with the read, so a busy client's stamps stay
right. What is noted is the last segment that a read brought. A read with its note costs more than one without: a read
that follows the look before it closely needs none.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

NOTE_BYTES: Final = socket.CMSG_SPACE(16)

# asm-generic/socket.h; Python has no name for it.
_SO_TIMESTAMPNS: Final = 35
_timespec: Final = struct.Struct("qq").unpack

# two clocks read this close together are as good as read at once.
_TOGETHER_SECONDS: Final = 20e-6
# the wall clock is slewed by less than this between two looks; more means that somebody has set it.
_STEADY_SECONDS: Final = 0.001
# what arrived since a look this short a time ago is not stamped late by more.
_SHORT_SECONDS: Final = 0.0002


def note_arrivals(connected: Any) -> bool:
    """Have the kernel note arrivals on a socket; whether it does."""
    try:
        connected.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class ArrivalClock:
    """Turns the kernel's notes into times of the monotonic clock. `look` before each batch of reads."""

    def __init__(self) -> None:
        self._offset_seconds = time.time() - time.monotonic()
        self._is_steady = False
        self._looked_seconds = 0.0

    def look(self) -> bool:
        """See how far the wall clock is ahead; whether notes are needed, much time having passed since the last look.

        To be called after all sockets were asked what has arrived, so that nothing is older than the last look.
        """
        before = time.monotonic()
        is_long = before - self._looked_seconds > _SHORT_SECONDS
        self._looked_seconds = before
        if not is_long:
            return False
        wall = time.time()
        after = time.monotonic()
        if after - before < _TOGETHER_SECONDS:
            offset_seconds = wall - after
            self._is_steady = abs(offset_seconds - self._offset_seconds) < _STEADY_SECONDS
            self._offset_seconds = offset_seconds
        return True

    def seconds(self, notes: Sequence[tuple[int, int, bytes]]) -> float:
        """When what was just read arrived: as noted, else now.

        A note is not used when the wall clock was set since it was made, or when it would lie in the future.
        """
        now = time.monotonic()
        if not notes or not self._is_steady:
            return now
        whole, part = _timespec(notes[0][2])
        noted = whole - self._offset_seconds + part * 1e-9
        return noted if noted < now else now
