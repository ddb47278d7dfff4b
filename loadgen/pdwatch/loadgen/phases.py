"""Runs a plan's phases one after another and tells how they go.

Each phase begins with all its users waiting and ends with none in flight: after the window they go on sending until
every measured request has ended, then the requests sent meanwhile are let to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import gevent
from gevent.event import Event
from locust.runners import LocalRunner

from .plan import Phase
from .session import PhaseRun, Session
from .transcript import Label, Outcome
from .users import SessionEnvironment, ToolCallUser

Report = Callable[[Mapping[str, Any]], None]

_PROGRESS_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.02
_LAG_SECONDS: Final = 0.05

# how long the phase's end waits for its last records; whatever is left is written all the same.
_RECORDING_SECONDS: Final = 60.0


class PhaseRunner:
    """Drives one session; `stop` ends it early from another greenlet or a signal."""

    def __init__(self, session: Session, report: Report) -> None:
        self._session = session
        self._report = report
        self._stop = Event()
        self._runner: Any = LocalRunner(SessionEnvironment(session, ToolCallUser))
        self._loop_lag_seconds = 0.0
        self._lag = gevent.spawn(self._watch_lag)

    def run(self) -> bool:
        """Run all phases; False when it was stopped before the end. Raises LoadgenError."""
        try:
            return all(self._run_phase(phase) for phase in self._session.plan.phases)
        finally:
            self._end()

    def stop(self) -> None:
        """Send no more; requests in flight are given up."""
        self._session.is_stopping = True
        self._stop.set()

    def _run_phase(self, phase: Phase) -> bool:
        self._runner.start(phase.level, spawn_rate=phase.level)
        self._runner.spawning_greenlet.join()
        self._loop_lag_seconds = 0.0
        run = self._session.begin(phase)
        unix_offset_seconds = time.time() - time.monotonic()
        window = {
            "window_starts_seconds": run.window_starts_seconds,
            "window_ends_seconds": run.window_ends_seconds,
            "window_starts_unix_seconds": run.window_starts_seconds + unix_offset_seconds,
            "window_ends_unix_seconds": run.window_ends_seconds + unix_offset_seconds,
        }
        self._report({"event": "phase_start", **_names(phase), "target": run.target.url, **window})
        plan = self._session.plan
        longest_request_seconds = plan.connect_timeout_seconds + plan.request_timeout_seconds
        self._wait(run, run.window_ends_seconds, lambda: False)
        self._wait(run, run.window_ends_seconds + longest_request_seconds, lambda: not run.in_flight[Label.MEASURED])
        self._session.pause()
        self._wait(run, time.monotonic() + longest_request_seconds, lambda: not run.in_flight.total())
        recorder = self._session.recorder
        self._wait(run, time.monotonic() + _RECORDING_SECONDS, lambda: not recorder.pending)
        if self._stop.is_set():
            return False
        self._report({"event": "phase_end", **_names(phase), **window, **self._counts(run)})
        return True

    def _wait(self, run: PhaseRun, until_seconds: float, is_over: Callable[[], bool]) -> None:
        next_report_seconds = time.monotonic() + _PROGRESS_SECONDS
        while not self._stop.is_set() and not is_over() and (now := time.monotonic()) < until_seconds:
            self._session.check()
            if now >= next_report_seconds:
                self._report({"event": "progress", **_names(run.phase), **self._counts(run), **self._rate(run)})
                next_report_seconds += _PROGRESS_SECONDS
            self._stop.wait(min(_POLL_SECONDS, until_seconds - now))
        self._session.check()

    def _counts(self, run: PhaseRun) -> dict[str, Any]:
        counted = {
            (label, outcome): count
            for (index, label, outcome), count in list(self._session.recorder.outcomes.items())
            if index == run.phase.index
        }
        errors: dict[str, int] = {}
        for (_, outcome), count in counted.items():
            if outcome not in (Outcome.COMPLETE, Outcome.CANCELLED):
                errors[outcome.value] = errors.get(outcome.value, 0) + count
        return {
            "label": run.label(time.monotonic()).value,
            "sent": {label.value: run.sent[label] for label in Label},
            "in_flight": run.in_flight.total(),
            "ended": sum(counted.values()),
            "completed": sum(count for (_, outcome), count in counted.items() if outcome is Outcome.COMPLETE),
            "measured": sum(count for (label, _), count in counted.items() if label is Label.MEASURED),
            "cancelled": sum(count for (_, outcome), count in counted.items() if outcome is Outcome.CANCELLED),
            "errors": errors,
            "loop_lag_seconds": round(self._loop_lag_seconds, 6),
        }

    def _rate(self, run: PhaseRun) -> dict[str, float]:
        started_seconds = run.window_starts_seconds - run.phase.warmup_seconds
        elapsed_seconds = time.monotonic() - started_seconds
        ended = run.sent.total() - run.in_flight.total()
        return {"elapsed_seconds": round(elapsed_seconds, 3), "requests_per_second": round(ended / elapsed_seconds, 3)}

    def _watch_lag(self) -> None:
        """Keep the longest time that a greenlet ready to run had to wait in this phase."""
        while True:
            due_seconds = time.monotonic() + _LAG_SECONDS
            gevent.sleep(_LAG_SECONDS)
            self._loop_lag_seconds = max(self._loop_lag_seconds, time.monotonic() - due_seconds)

    def _end(self) -> None:
        self._session.is_stopping = True
        self._lag.kill()
        # users blocked between requests and in them are killed; those in them record what they have.
        self._runner.quit()


def _names(phase: Phase) -> dict[str, Any]:
    return {"phase": phase.index, "arm": phase.arm, "level": phase.level}
