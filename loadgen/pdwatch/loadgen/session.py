"""What the users of a run share: the phase under way and the requests in flight."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Final

from gevent.event import Event
from gevent.lock import BoundedSemaphore

from .client import StreamClient
from .connection import Connector
from .desk import Desk
from .errors import LoadgenError
from .exchange import End, Exchange
from .load import ReplayLoad, WavesLoad
from .meter import Meter
from .pacing import Pace, Turn
from .plan import Phase, Plan
from .poller import Poller
from .prepared import Prepared
from .share import Share
from .target import Target
from .tls import tls_context
from .transcript import Label

# more handshakes at once would only wait in the server's queue, and the kernel drops what does not fit there.
_MOST_CONNECTING: Final = 64


class PhaseRun:
    """A phase under way; times are monotonic. `left` counts the measured requests still to be sent, where that ends it.

    Users first open their connections, and wait until `start` is set; `is_over` lets them wait for the next phase.
    `ended_early` says why nothing more is sent, None while all is well.
    """

    def __init__(self, phase: Phase, target: Target, pace: Pace, left: int | None) -> None:
        self.phase = phase
        self.target = target
        self.pace = pace
        self.left = left
        self.has_own_end = left is not None or isinstance(phase.load, WavesLoad | ReplayLoad)
        self.start = Event()
        self.is_over = Event()
        self.ready = 0
        self.started_seconds = self.window_starts_seconds = self.window_ends_seconds = math.inf
        self.sent: Counter[Label] = Counter()
        self.in_flight: Counter[Label] = Counter()
        self.last_measured_seconds: float | None = None
        self.ended_early: str | None = None
        self._unreachable: tuple[float, str] | None = None
        self._places = 0

    @property
    def is_sent(self) -> bool:
        """Whether the measured part has ended by itself: nothing more is to be sent."""
        return self.has_own_end and (self.left == 0 or self.pace.is_exhausted)

    def unsent(self, before_seconds: float) -> int:
        """Requests wanted of this phase that fell due before a time and that no user has been free for."""
        waiting = self.pace.waiting(before_seconds)
        return waiting if self.left is None else min(waiting, self.left)

    def place(self) -> int:
        """A user's place in this phase, in the order of asking."""
        self._places += 1
        return self._places - 1

    def begin(self) -> None:
        """Let the users send from now on."""
        self.started_seconds = time.monotonic()
        self.window_starts_seconds = self.started_seconds + self.phase.lead_seconds
        if not self.has_own_end:
            self.window_ends_seconds = self.window_starts_seconds + self.phase.window_seconds
        self.pace.begin(self.started_seconds, self.window_starts_seconds)
        if self.left == 0:
            self.pace.end()
        self.start.set()

    def note_end(self, exchange: Exchange) -> None:
        """A request has ended: keep since when all that ended have failed to connect."""
        if exchange.end is End.NO_CONNECTION:
            since_seconds = self._unreachable[0] if self._unreachable else exchange.ended_seconds
            self._unreachable = (since_seconds, exchange.detail)
        elif exchange.end is not End.CANCELLED:
            self._unreachable = None

    def is_unreachable(self, for_seconds: float) -> bool:
        """Whether for so long nothing has connected; `ended_early` says why then."""
        if self._unreachable is not None and time.monotonic() - self._unreachable[0] >= for_seconds:
            self.ended_early = f"no request has connected for {for_seconds:g} s ({self._unreachable[1]})"
        return self.ended_early is not None

    def label(self, now_seconds: float) -> Label:
        """The label of a request that is due now."""
        if now_seconds < self.window_starts_seconds:
            return Label.WARMUP
        return Label.MEASURED if now_seconds < self.window_ends_seconds else Label.COOLDOWN


class Session:
    """Hands the users their requests. `arrived` is set while there is a phase to join, `current`."""

    def __init__(self, plan: Plan, poller: Poller, desk: Desk, meter: Meter, share: Share) -> None:
        self.plan = plan
        self.poller = poller
        self.desk = desk
        self.meter = meter
        self.share = share
        self.arrived = Event()
        self.is_stopping = False
        self.error: Exception | None = None
        self.connecting = BoundedSemaphore(_MOST_CONNECTING)
        self._current: PhaseRun | None = None
        self._connectors = connectors(plan, poller)
        self._users = 0

    @property
    def current(self) -> PhaseRun:
        """The phase to join; there is one once `arrived` is set."""
        assert self._current is not None
        return self._current

    def add_user(self) -> int:
        """Number of a new user, other than that of any driver's."""
        self._users += 1
        return self.share.number(self._users - 1)

    def client(self, target: Target) -> StreamClient:
        """A connection of a user's own."""
        return StreamClient(
            self._connectors[target.url],
            request_timeout_seconds=self.plan.request_timeout_seconds,
            most_response_bytes=self.plan.most_response_bytes,
            meter=self.meter,
        )

    def open(self, run: PhaseRun) -> None:
        """Let the users join a phase."""
        self._current = run
        self.arrived.set()

    def close(self, run: PhaseRun) -> None:
        """Let the users of a phase wait for the next one."""
        self.arrived.clear()
        run.pace.close()
        run.is_over.set()

    def take(self, run: PhaseRun, turn: Turn) -> tuple[Label, Prepared] | None:
        """The request to send now, None when the phase wants none; it is in flight until `ended`."""
        now_seconds = time.monotonic() if turn.scheduled_seconds is None else turn.scheduled_seconds
        label = turn.label or run.label(now_seconds)
        return (label, self.desk.feeder.take(label)) if self._count(run, label) else None

    def go_on(self, run: PhaseRun) -> Label | None:
        """The label of a conversation's next request, to be sent now; None when the phase wants none."""
        label = run.label(time.monotonic())
        return label if self._count(run, label) else None

    def ended(self, run: PhaseRun, label: Label, request: Prepared, user: int, exchange: Exchange) -> Prepared | None:
        """Record what became of a request; the next one of its conversation, for which the caller waits."""
        run.in_flight[label] -= 1
        run.note_end(exchange)
        if label is Label.MEASURED:
            run.last_measured_seconds = max(run.last_measured_seconds or 0.0, exchange.ended_seconds)
        if request.may_go_on and not self.is_stopping:
            return self.desk.recorder.put_and_wait(request.request_id, label, user, exchange)
        self.desk.recorder.put(request.request_id, label, user, exchange)
        return None

    def check(self) -> None:
        """Raises the first error of a user or of the poller, LoadgenError when the clerk has failed."""
        self.desk.check()
        if self.poller.error is not None:
            raise LoadgenError(f"the poller failed: {self.poller.error!r}") from self.poller.error
        if self.error is not None:
            raise self.error

    def _count(self, run: PhaseRun, label: Label) -> bool:
        if self.is_stopping or run.is_over.is_set() or run.ended_early is not None:
            return False
        if run.has_own_end and label is not Label.WARMUP:
            if run.left == 0:
                return False
            if run.left is not None:
                run.left -= 1
                if run.left == 0:
                    run.pace.end()
        run.sent[label] += 1
        run.in_flight[label] += 1
        return True


def connectors(plan: Plan, poller: Poller) -> dict[str, Connector]:
    """A connector for each target URL of a plan. Raises PlanError for a `ca_file` that cannot be used."""
    targets = [Target.parse(url) for url in dict.fromkeys(plan.targets.values())]
    has_tls = any(target.is_tls for target in targets)
    context = tls_context(plan.ca_file, plan.is_verified) if has_tls else None
    proxy = None if plan.proxy is None else Target.parse(plan.proxy)
    return {target.url: Connector(poller, target, context, proxy, plan.connect_timeout_seconds) for target in targets}
