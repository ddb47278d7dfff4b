"""How far another machine's monotonic clock is from ours, found by asking it for the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# two processes of one machine read one clock: a difference below this is the asking's own.
_SAME_CLOCK_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Ping:
    """One asking: our time before and after, and the other clock's in between."""

    sent_seconds: float
    other_seconds: float
    received_seconds: float


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The other clock minus ours, known to within `uncertainty_seconds` either way."""

    offset_seconds: float = 0.0
    uncertainty_seconds: float = 0.0

    def to_other(self, our_seconds: float) -> float:
        """A time of ours on the other clock."""
        return our_seconds + self.offset_seconds

    def to_ours(self, other_seconds: float) -> float:
        """A time of the other clock on ours."""
        return other_seconds - self.offset_seconds


def clock_offset(pings: Sequence[Ping], *, is_same_machine: bool = False) -> ClockOffset:
    """The offset that all pings allow; there must be one.

    The other clock was read after we sent and before we received, which bounds the offset on both sides; the true one
    is where all bounds overlap. On one machine it is 0, unless the bounds rule that out.
    """
    lower = max(ping.other_seconds - ping.received_seconds for ping in pings)
    upper = min(ping.other_seconds - ping.sent_seconds for ping in pings)
    # clocks that run apart while they are asked leave no overlap: then the bounds are off by as much.
    lower, upper = min(lower, upper), max(lower, upper)
    if is_same_machine and lower - _SAME_CLOCK_SECONDS <= 0 <= upper + _SAME_CLOCK_SECONDS:
        return ClockOffset()
    return ClockOffset((lower + upper) / 2, (upper - lower) / 2)


def between(before: ClockOffset, after: ClockOffset) -> ClockOffset:
    """The offset of a stretch of time that began and ended with these."""
    drift_seconds = after.offset_seconds - before.offset_seconds
    uncertainty_seconds = max(before.uncertainty_seconds, after.uncertainty_seconds) + abs(drift_seconds) / 2
    return ClockOffset(before.offset_seconds + drift_seconds / 2, uncertainty_seconds)


def boot() -> str | None:
    """What is the same in all processes of one machine until it is started anew; None where it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
