"""A driver that runs its share of each phase in step with others, as a leader tells it.

It takes phases one by one; begins at the agreed time; sends on until the measured requests of all drivers have ended;
and releases each wave with the others. Its own figures are not summed up here: the leader has the rows of all.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ..alarm import Alarm
from ..errors import LoadgenError
from ..load import WavesLoad
from ..messages import PhaseFigures
from ..pacing import Pace, Turn, WavesPace
from ..phases import PhaseRunner, Report, measured_unsent
from ..plan import Phase
from ..poller import Poller
from ..session import PhaseRun, Session
from ..share import Share
from ..transcript import Label
from .orders import Order, Orders

_POLL_SECONDS: Final = 0.05
_RECORDING_SECONDS: Final = 60.0


class StepRunner(PhaseRunner):
    """A PhaseRunner whose phases and times come from standard input."""

    def __init__(self, session: Session, report: Report) -> None:
        super().__init__(session, report)
        self._waves: StepWaves | None = None
        self._is_lost = False
        self._orders = Orders(sys.stdin.fileno(), session.poller, self._wave, self._lost)

    def run(self) -> dict[str, Any] | None:
        """Run the phases that the leader names; None when stopped. Raises LoadgenError, also when it is gone."""
        phases = 0
        try:
            while self._until(lambda: self._orders.peek() is not None):
                order = self._orders.take()
                if order["do"] == "finish":
                    return {"phases": phases}
                # a phase of fewer users than drivers is shared among as many of them.
                share = Share(self._session.share.index, order["of"])
                self._session.share = self._desk.feeder.share = share
                self._run_phase(Phase.model_validate_json(order["phase"]), {})
                phases += 1
            if self._is_lost:
                raise LoadgenError("the leader is gone, so the run was ended")
            return None
        finally:
            self._orders.close()
            self._session.is_stopping = True
            self._crowd.close()

    def stop(self) -> None:
        """Send no more; requests in flight are given up."""
        super().stop()
        self._orders.changed.set()

    def _pace(self, phase: Phase) -> Pace:
        self._waves = None
        if not isinstance(phase.load, WavesLoad):
            return super()._pace(phase)
        self._waves = StepWaves(phase, self._session.share, self._session.poller, self._ask_for_wave)
        return self._waves

    def _ready(self, run: PhaseRun) -> None:
        self._report({"event": "ready", "phase": run.phase.index})
        if not self._until(lambda: self._orders.has("begin")):
            return
        begin_seconds = self._orders.take()["at_seconds"]
        self._stop.wait(max(0.0, begin_seconds - time.monotonic()))

    def _measured_ended(self, run: PhaseRun) -> None:
        self._report({"event": "measured_ended", "phase": run.phase.index})
        self._wait(run, math.inf, lambda: self._orders.has("release"))
        if not self._stop.is_set():
            self._orders.take()

    def _conclude(self, run: PhaseRun) -> PhaseFigures | None:
        recorder = self._desk.recorder
        self._wait(run, time.monotonic() + _RECORDING_SECONDS, lambda: not recorder.pending)
        if self._stop.is_set():
            return None
        if recorder.pending:
            raise LoadgenError(f"{recorder.pending} requests were not recorded within {_RECORDING_SECONDS:g} s")
        # of what was never sent there is no row: the leader must be told.
        return PhaseFigures(run.phase.index, {}, {"unsent": measured_unsent(run)}, None)

    def _until(self, is_over: Callable[[], bool]) -> bool:
        """Wait without a phase under way; False when the run was stopped instead."""
        while not self._stop.is_set() and not is_over():
            self._session.check()
            self._orders.changed.wait(_POLL_SECONDS)
            self._orders.changed.clear()
        return not self._stop.is_set()

    def _ask_for_wave(self, number: int) -> None:
        self._report({"event": "wave_wanted", "number": number})

    def _wave(self, order: Order) -> None:
        if self._waves is not None:
            self._waves.leave(Label(order["label"]), order["at_seconds"])

    def _lost(self) -> None:
        self._is_lost = True
        self.stop()


class StepWaves(WavesPace):
    """This driver's part of each wave, none at all where the wave has fewer requests than there are drivers.

    `ask` is called with a wave's number when the part of the one before has ended; `leave` lets it go.
    """

    def __init__(self, phase: Phase, share: Share, poller: Poller, ask: Callable[[int], None]) -> None:
        load = phase.load
        assert isinstance(load, WavesLoad)
        self._sizes = [share.count(size) for size in load.sizes]
        super().__init__(self._sizes, load.repeats, share.count(phase.level), poller)
        self._left = deque(self._sizes * load.repeats)
        self._ask = ask
        self._number = 0
        self._warm_ups = 0
        self._is_asking = False
        self._label = Label.WARMUP
        self._alarm = Alarm(poller, self._go)

    def leave(self, label: Label, at_seconds: float) -> None:
        """Release the wave that was asked for at this time."""
        self._label = label
        self._alarm.set(at_seconds)

    def close(self) -> None:
        if not self._queue.is_closed:
            self._alarm.close()
        super().close()

    def _release(self) -> None:
        if self._measured_seconds is None or self._is_asking or self._queue.idle < self.users:
            return
        if not self._left:
            self.is_exhausted = True
            return
        self._is_asking = True
        self._ask(self._number)

    def _go(self) -> None:
        self._number += 1
        if self._label is Label.WARMUP:
            size = self._sizes[self._warm_ups % len(self._sizes)]
            self._warm_ups += 1
        else:
            size = self._left.popleft()
        for _ in range(size):
            self._queue.give(Turn(label=self._label))
        self._is_asking = False
        # of an empty part the end is here already.
        self._release()
