"""What the users of a run share: the phase under way and the requests in flight."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from gevent.event import Event

from .exchange import Exchange
from .feeder import Feeder
from .plan import Phase, Plan
from .prepared import Prepared
from .recorder import Recorder
from .target import Target
from .transcript import Label


@dataclass(slots=True)
class PhaseRun:
    """A phase under way; times are monotonic."""

    phase: Phase
    target: Target
    window_starts_seconds: float
    window_ends_seconds: float
    sent: Counter[Label] = field(default_factory=Counter)
    in_flight: Counter[Label] = field(default_factory=Counter)

    def label(self, now_seconds: float) -> Label:
        """The label of a request sent now."""
        if now_seconds < self.window_starts_seconds:
            return Label.WARMUP
        return Label.MEASURED if now_seconds < self.window_ends_seconds else Label.COOLDOWN


class Session:
    """Hands the users their requests. `may_send` is set while a phase runs."""

    def __init__(self, plan: Plan, feeder: Feeder, recorder: Recorder) -> None:
        self.plan = plan
        self.recorder = recorder
        self.current: PhaseRun | None = None
        self.may_send = Event()
        self.is_stopping = False
        self.error: Exception | None = None
        self._feeder = feeder
        self._users = 0

    def add_user(self) -> int:
        """Number of a new user."""
        self._users += 1
        return self._users - 1

    def begin(self, phase: Phase) -> PhaseRun:
        """Let the users send a phase's requests from now on."""
        self._feeder.begin(phase)
        window_starts_seconds = time.monotonic() + phase.warmup_seconds
        window_ends_seconds = window_starts_seconds + phase.window_seconds
        self.current = PhaseRun(phase, self.plan.target(phase), window_starts_seconds, window_ends_seconds)
        self.may_send.set()
        return self.current

    def pause(self) -> None:
        """Let no user send a further request."""
        self.may_send.clear()

    def take(self, run: PhaseRun) -> tuple[Label, Prepared]:
        """The request to send now; it is in flight until it is put back by `ended`."""
        label = run.label(time.monotonic())
        run.sent[label] += 1
        run.in_flight[label] += 1
        return label, self._feeder.take(label)

    def ended(self, run: PhaseRun, label: Label, request: Prepared, user: int, exchange: Exchange) -> None:
        """Record what became of a request."""
        run.in_flight[label] -= 1
        self.recorder.put(request.facts, user, exchange)

    def check(self) -> None:
        """Raises the first error of a user, LoadgenError when a helper process has failed."""
        self._feeder.check()
        self.recorder.check()
        if self.error is not None:
            raise self.error
