"""When each user may send: what becomes of a plan's Load while a phase runs."""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import gevent
from gevent.event import Event

from .alarm import Alarm
from .arrivals import arrival_offsets
from .load import ClosedLoad, OpenLoad, RampLoad, ReplayLoad, WavesLoad
from .plan import Phase
from .poller import Poller
from .share import Share
from .trace import read_offsets
from .transcript import Label

# users without a request that stand ready for a schedule's next arrivals.
_LEAST_RESERVE: Final = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """Leave to send one request. `label` is set where the time of sending does not tell it."""

    scheduled_seconds: float | None = None
    label: Label | None = None


class Pace(Protocol):
    """Users call `turn` between their requests; None tells that the phase has no more for them.

    `users` is how many this driver has for it; `bound` is how many it may come to have where their number follows the
    need, None where it is fixed. `follows_answers` tells that what is sent waits for what came of earlier requests.
    """

    users: int
    bound: int | None
    follows_answers: bool

    @property
    def is_exhausted(self) -> bool:
        """Whether every turn has been given."""
        ...

    def begin(self, start_seconds: float, measured_seconds: float) -> None:
        """Let the load begin; what is due before `measured_seconds` is warm-up."""
        ...

    def turn(self, place: int) -> Turn | None:
        """Wait for leave to send, as the `place`-th user of this driver."""
        ...

    def missing_users(self) -> int:
        """How many more users are needed by now."""
        ...

    def due(self) -> int | None:
        """How many requests the schedule has had so far; None without one."""
        ...

    def waiting(self, before_seconds: float) -> int:
        """Turns that fell due before a time and that no user has been free for."""
        ...

    def intended_in_flight(self, starts_seconds: float, ends_seconds: float) -> float | None:
        """Requests meant to be in flight, on average over a time; None where the load does not say."""
        ...

    def end(self) -> None:
        """Nothing more will be sent: no turn falls due any more, and those that wait stay ungiven."""
        ...

    def close(self) -> None:
        """Give no more turns, and let nobody wait for one."""
        ...


def make_pace(phase: Phase, share: Share, seed: int, poller: Poller) -> Pace:
    """The pace of this driver's part of a phase. Raises PlanError for a trace that cannot be read."""
    load = phase.load
    users = share.count(phase.level)
    match load:
        case OpenLoad():
            offsets = itertools.islice(arrival_offsets(load, seed), share.index, None, share.of)
            # what arrives in a second; how many are in flight at once will show.
            first = math.ceil(load.rate_per_second / share.of)
            return SchedulePace(offsets, min(users, max(_LEAST_RESERVE, first)), users, poller)
        case ReplayLoad():
            offsets = itertools.islice(read_offsets(load.path), share.index, None, share.of)
            scaled = (offset / load.speed for offset in offsets)
            return SchedulePace(scaled, min(users, 4 * _LEAST_RESERVE), users, poller)
        case WavesLoad():
            sizes = [share.count(size) for size in load.sizes]
            return WavesPace(sizes, load.repeats, users, poller)
        case ClosedLoad() | RampLoad():
            return UsersPace([_delay_seconds(load, phase.level, share.number(place)) for place in range(users)])


def warm_up_requests(load: ReplayLoad, share: Share, warm_up_seconds: float) -> int:
    """How many of this driver's requests of a trace are due before the measured part."""
    offsets = itertools.islice(read_offsets(load.path), share.index, None, share.of)
    return sum(offset / load.speed < warm_up_seconds for offset in offsets)


def _delay_seconds(load: ClosedLoad | RampLoad, level: int, number: int) -> float:
    """Time from the start of the phase to a user's first request."""
    if isinstance(load, RampLoad):
        growing = level - load.from_users
        return load.over_seconds * (number - load.from_users + 1) / growing if number >= load.from_users else 0.0
    return number * load.stagger_seconds if load.start == "staggered" else 0.0


class UsersPace:
    """A closed loop whose users begin after the given delays."""

    bound: int | None = None
    follows_answers = True

    def __init__(self, delays_seconds: list[float]) -> None:
        self.users = len(delays_seconds)
        self.is_exhausted = False
        self._delays_seconds = delays_seconds
        self._has_begun = [False] * len(delays_seconds)
        self._start_seconds = 0.0
        self._closed = Event()

    def begin(self, start_seconds: float, measured_seconds: float) -> None:
        self._start_seconds = start_seconds

    def turn(self, place: int) -> Turn | None:
        if not self._has_begun[place]:
            self._has_begun[place] = True
            wait_seconds = self._start_seconds + self._delays_seconds[place] - time.monotonic()
            if wait_seconds > 0:
                self._closed.wait(wait_seconds)
        return None if self._closed.is_set() else Turn()

    def missing_users(self) -> int:
        return 0

    def due(self) -> int | None:
        return None

    def waiting(self, before_seconds: float) -> int:
        return 0

    def intended_in_flight(self, starts_seconds: float, ends_seconds: float) -> float | None:
        if ends_seconds <= starts_seconds:
            return None
        begun = (max(starts_seconds, self._start_seconds + delay) for delay in self._delays_seconds)
        return sum(max(0.0, ends_seconds - seconds) for seconds in begun) / (ends_seconds - starts_seconds)

    def end(self) -> None:
        pass

    def close(self) -> None:
        self._closed.set()


class _Place:
    """A user that waits for its turn."""

    __slots__ = ("greenlet", "number", "turn")

    def __init__(self, number: int) -> None:
        self.greenlet: Any = gevent.getcurrent()
        self.number = number
        self.turn: Turn | None = None


class _Queue:
    """Users that wait for their turns, the latest to come being the first to go: so the fewest connections are used."""

    def __init__(self, poller: Poller) -> None:
        self.is_closed = False
        self._poller = poller
        self._idle: list[_Place] = []
        self._busy: set[int] = set()

    @property
    def idle(self) -> int:
        """Users that wait."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """Users that have been given a turn and have not come back."""
        return len(self._busy)

    def come(self, number: int) -> _Place:
        """The calling user's place; it is to wait for its turn next."""
        self._busy.discard(number)
        self._idle.append(_Place(number))
        return self._idle[-1]

    def wait(self, place: _Place) -> Turn | None:
        """Wait for the turn; None when the queue is closed."""
        try:
            self._poller.wait()
        except BaseException:
            if place in self._idle:
                self._idle.remove(place)
            raise
        return place.turn

    def give(self, turn: Turn) -> None:
        """Give a user its turn; there must be one."""
        place = self._idle.pop()
        place.turn = turn
        self._busy.add(place.number)
        self._poller.wake(place.greenlet)

    def close(self) -> None:
        """Let nobody wait."""
        self.is_closed = True
        while self._idle:
            self._poller.wake(self._idle.pop().greenlet)


class SchedulePace:
    """An open loop: turns fall due at absolute times, and wait when no user is free."""

    follows_answers = False

    def __init__(self, offsets_seconds: Iterable[float], users: int, most_users: int, poller: Poller) -> None:
        self.users = users
        self._offsets: Iterator[float] = iter(offsets_seconds)
        self.bound: int | None = most_users
        self._most_users = most_users
        self._queue = _Queue(poller)
        self._late: deque[float] = deque()
        self._has_ended = False
        self._start_seconds = 0.0
        self._next_seconds: float | None = math.inf
        self._due = 0
        self._alarm = Alarm(poller, self._ring)

    @property
    def is_exhausted(self) -> bool:
        return self._has_ended or (self._next_seconds is None and not self._late)

    def begin(self, start_seconds: float, measured_seconds: float) -> None:
        self._start_seconds = start_seconds
        self._advance()

    def turn(self, place: int) -> Turn | None:
        if self._queue.is_closed:
            return None
        waiting = self._queue.come(place)
        if self._late and not self._has_ended:
            self._queue.give(Turn(self._late.popleft()))
        return self._queue.wait(waiting)

    def missing_users(self) -> int:
        if self.is_exhausted:
            return 0
        reserve = max(_LEAST_RESERVE, self._queue.busy // 4)
        wanted = self._queue.busy + len(self._late) + reserve
        missing = max(0, min(wanted, self._most_users) - self.users)
        self.users += missing
        return missing

    def due(self) -> int | None:
        return self._due

    def waiting(self, before_seconds: float) -> int:
        return bisect.bisect_left(self._late, before_seconds)

    def intended_in_flight(self, starts_seconds: float, ends_seconds: float) -> float | None:
        return None

    def end(self) -> None:
        self._has_ended = True
        self._next_seconds = None

    def close(self) -> None:
        if not self._queue.is_closed:
            self._queue.close()
            self._alarm.close()

    def _ring(self) -> None:
        now_seconds = time.monotonic()
        while self._next_seconds is not None and self._next_seconds <= now_seconds:
            if self._queue.idle:
                self._queue.give(Turn(self._next_seconds))
            else:
                self._late.append(self._next_seconds)
            self._due += 1
            self._next_seconds = self._following()
        self._set()

    def _advance(self) -> None:
        self._next_seconds = self._following()
        self._set()

    def _following(self) -> float | None:
        offset = next(self._offsets, None)
        return None if offset is None else self._start_seconds + offset

    def _set(self) -> None:
        if self._next_seconds is not None:
            self._alarm.set(self._next_seconds)


class WavesPace:
    """Waves of turns, each given when all users of the one before are back."""

    bound: int | None = None
    follows_answers = True

    def __init__(self, sizes: list[int], repeats: int, users: int, poller: Poller) -> None:
        self.users = users
        self.is_exhausted = False
        self._measured = iter([size for _ in range(repeats) for size in sizes if size])
        self._warm_up = itertools.cycle([size for size in sizes if size] or [0])
        self._queue = _Queue(poller)
        self._measured_seconds: float | None = None

    def begin(self, start_seconds: float, measured_seconds: float) -> None:
        self._measured_seconds = measured_seconds
        self._release()

    def turn(self, place: int) -> Turn | None:
        if self._queue.is_closed:
            return None
        waiting = self._queue.come(place)
        self._release()
        return self._queue.wait(waiting)

    def missing_users(self) -> int:
        return 0

    def due(self) -> int | None:
        return None

    def waiting(self, before_seconds: float) -> int:
        return 0

    def intended_in_flight(self, starts_seconds: float, ends_seconds: float) -> float | None:
        return None

    def end(self) -> None:
        pass

    def close(self) -> None:
        self._queue.close()

    def _release(self) -> None:
        """Give the next wave's turns when everybody waits for one."""
        if self._measured_seconds is None or self._queue.idle < self.users:
            return
        is_warm_up = time.monotonic() < self._measured_seconds
        size = next(self._warm_up if is_warm_up else self._measured, None)
        if size is None:
            self.is_exhausted = True
            return
        turn = Turn(label=Label.WARMUP if is_warm_up else Label.MEASURED)
        for _ in range(size):
            self._queue.give(turn)
