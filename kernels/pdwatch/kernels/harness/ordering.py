"""Which accesses to memory are ordered, across streams: a race detector that needs no timing.

Every stream has a clock, every event a copy of its stream's clock at the time of recording, and a wait takes the
maximum. Two accesses of different streams to overlapping addresses, at least one a write, race unless the later
stream had seen the earlier access. Addresses are kept across frees: what a caching allocator hands out again is where
the multi-stream aliasing race hides, since events order execution but not the allocator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Clock = dict[int, int]


@dataclass(frozen=True, slots=True)
class Access:
    """What `stream` did as its step number `time` to the bytes [start, stop)."""

    stream: int
    time: int
    start: int
    stop: int
    writes: bool
    what: str


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses that nothing orders, in the order in which the host issued them."""

    earlier: Access
    later: Access

    def __str__(self) -> str:
        first, second = ("writes" if access.writes else "reads" for access in (self.earlier, self.later))
        shared = min(self.earlier.stop, self.later.stop) - max(self.earlier.start, self.later.start)
        return (
            f"`{self.later.what}` on stream {self.later.stream:#x} {second} {shared} bytes that `{self.earlier.what}` "
            f"on stream {self.earlier.stream:#x} {first}, and nothing orders the two"
        )


class Ordering:
    """Accesses, events and waits of a program, told in the order in which the host issues them."""

    def __init__(self) -> None:
        self.races: list[Race] = []
        self._clocks: dict[int, Clock] = {}
        self._events: dict[int, Clock] = {}
        self._accesses: list[Access] = []

    def access(self, stream: int, what: str, reads: Sequence[range], writes: Sequence[range]) -> None:
        """`stream` runs an operation that touches these address ranges."""
        clock = self._clocks.setdefault(stream, {})
        clock[stream] = clock.get(stream, 0) + 1
        new = [
            Access(stream, clock[stream], span.start, span.stop, is_write, what)
            for spans, is_write in ((reads, False), (writes, True))
            for span in spans
            if len(span)
        ]
        self.races += [Race(old, access) for access in new for old in self._accesses if _conflict(old, access, clock)]
        self._accesses += new

    def record(self, event: int, stream: int) -> None:
        """`stream` records `event`; a later record replaces an earlier one."""
        self._events[event] = dict(self._clocks.get(stream, {}))

    def wait(self, stream: int, event: int) -> None:
        """`stream` waits for `event`."""
        clock = self._clocks.setdefault(stream, {})
        for other, time in self._events.get(event, {}).items():
            clock[other] = max(clock.get(other, 0), time)


def overlapping(first: Iterable[range], second: Iterable[range]) -> bool:
    """Do any two of the address ranges share a byte?"""
    others = list(second)
    return any(span.start < other.stop and other.start < span.stop for span in first for other in others)


def _conflict(old: Access, new: Access, clock: Clock) -> bool:
    return (
        old.stream != new.stream
        and (old.writes or new.writes)
        and old.start < new.stop
        and new.start < old.stop
        and clock.get(old.stream, 0) < old.time
    )
