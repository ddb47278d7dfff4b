"""Runs a plan's phases one after another and tells how they go.

Each phase begins with all its users connected and waiting, and ends with none in flight: after the measured part they
go on sending until every measured request has ended, then the requests sent meanwhile are let to end. A phase that
ends with a number of requests, a trace or its waves sends nothing after them.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gevent.event import AsyncResult, Event

from .capacity import CapacitySearch
from .crowd import Crowd
from .errors import LoadgenError
from .load import ReplayLoad
from .messages import Asking, Closing, PhaseFigures
from .pacing import Pace, make_pace, warm_up_requests
from .plan import Phase, phase_names
from .search import Look, looks
from .session import PhaseRun, Session
from .steady import Window
from .transcript import Label, Outcome
from .validity import ClientFacts, Validity, judge_validity

Report = Callable[[Mapping[str, Any]], None]

_PROGRESS_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.05

# how long a phase's end waits for its last records; if it breaks the run off, what is left is written all the same.
_RECORDING_SECONDS: Final = 60.0


class PhaseRunner:
    """Drives one session; `stop` ends it early from another greenlet or a signal."""

    def __init__(self, session: Session, report: Report) -> None:
        self._session = session
        self._desk = session.desk
        self._report = report
        self._stop = Event()
        self._crowd = Crowd(session)
        self._pairs: dict[tuple[str, int], int] = {}

    def run(self) -> dict[str, Any] | None:
        """Run all phases; what `done` tells, None when it was stopped before. Raises LoadgenError."""
        plan = self._session.plan
        try:
            if plan.search is not None:
                return self._search(CapacitySearch(plan.search), plan.phases[0])
            for phase in plan.phases:
                if self._run_phase(phase, {}) is None:
                    return None
            return {"phases": len(plan.phases)}
        finally:
            self._session.is_stopping = True
            self._crowd.close()

    def stop(self) -> None:
        """Send no more; requests in flight are given up."""
        self._session.is_stopping = True
        self._stop.set()

    def _search(self, search: CapacitySearch, template: Phase) -> dict[str, Any] | None:
        phases = 0
        for look in looks(search, template):

            def decide(figures: PhaseFigures, validity: Validity, look: Look = look) -> dict[str, Any]:
                in_flight = figures.summary["in_flight_mean"]
                decision = look.decide(Window(**figures.window), figures.margins or (), in_flight, validity)
                return {"decision": decision}

            if self._run_phase(look.phase, {"search_load": look.load}, decide) is None:
                return None
            phases += 1
        return {"phases": phases, "capacity": search.statement()}

    def _run_phase(
        self,
        phase: Phase,
        extra: dict[str, Any],
        decide: Callable[[PhaseFigures, Validity], dict[str, Any]] | None = None,
    ) -> PhaseFigures | None:
        """Run one phase; None when it was stopped."""
        run = self._make_ready(phase)
        try:
            facts = self._load(run)
        finally:
            self._session.close(run)
        figures = None if self._stop.is_set() else self._conclude(run)
        if figures is None:
            return None
        validity = judge_validity(facts, self._session.plan.limits)
        event = {
            "event": "phase_end",
            **phase_names(phase),
            **_window(run),
            **self._counts(run),
            "summary": figures.summary,
            "client": facts.model_dump(mode="json"),
            "validity": validity.model_dump(mode="json"),
            **({} if run.ended_early is None else {"ended_early": run.ended_early}),
            **extra,
        }
        if decide is not None:
            event.update(decide(figures, validity))
        self._report(event)
        return figures

    def _make_ready(self, phase: Phase) -> PhaseRun:
        """The phase, its users connected and its first requests ready."""
        session = self._session
        share = session.share
        pace = self._pace(phase)
        left = None if phase.requests is None else share.count(phase.requests)
        run = PhaseRun(phase, session.plan.target(phase), pace, left)
        key = (phase.arm, phase.level)
        pair = self._pairs[key] = self._pairs.get(key, -1) + 1
        most: dict[Label, int | None] = {Label.WARMUP: None} if phase.lead_seconds else {}
        first = {}
        if isinstance(phase.load, ReplayLoad):
            first[Label.MEASURED] = warm_up_requests(phase.load, share, phase.lead_seconds)
        most[Label.MEASURED] = left
        if not run.has_own_end:
            most[Label.COOLDOWN] = None
        self._crowd.resize(pace.users)
        session.open(run)
        session.desk.feeder.begin(phase, pair, most, first, self._stop.is_set)
        # one that cannot connect is ready too: its first request tells why.
        limit_seconds = time.monotonic() + 2 * session.plan.connect_timeout_seconds * (1 + pace.users / 64)
        self._wait(run, limit_seconds, lambda: run.ready >= pace.users)
        # what there is so far is not looked through for garbage again, which takes tens of milliseconds.
        gc.freeze()
        self._ready(run)
        return run

    def _pace(self, phase: Phase) -> Pace:
        """When this driver's users may send."""
        return make_pace(phase, self._session.share, self._session.plan.seed, self._session.poller)

    def _ready(self, run: PhaseRun) -> None:
        """Everything is ready to begin: where others are to begin too, wait for them here."""

    def _measured_ended(self, run: PhaseRun) -> None:
        """No measured request is left: where others have some, hold the load for them here."""

    def _load(self, run: PhaseRun) -> ClientFacts:
        """Let the users send, from the first request to the last one's end; what the client did meanwhile."""
        plan, meter, pace = self._session.plan, self._session.meter, run.pace
        longest_request_seconds = plan.connect_timeout_seconds + plan.request_timeout_seconds
        run.begin()
        self._report({"event": "phase_start", **phase_names(run.phase), "target": run.target.url, **_window(run)})

        def is_over() -> bool:
            return run.is_sent or run.is_unreachable(plan.unreachable_seconds)

        self._wait(run, run.window_starts_seconds, is_over)
        meter.begin()
        due = pace.due()
        self._wait(run, run.window_ends_seconds, is_over)
        meter.stop_flow()
        if run.ended_early is not None:
            self._end_early(run, run.ended_early)
        now_due, elapsed_seconds = pace.due(), meter.flow_seconds
        rate = None if due is None or now_due is None or not elapsed_seconds else (now_due - due) / elapsed_seconds
        in_flight = pace.intended_in_flight(run.window_starts_seconds, time.monotonic())
        if in_flight is not None:
            # users that rest after the server's failures are not meant to be in flight.
            in_flight = max(0.0, in_flight - meter.held_up_mean())
        limit_seconds = time.monotonic() + longest_request_seconds
        self._wait(run, limit_seconds, lambda: not (run.in_flight[Label.MEASURED] or self._unsent(run)))
        if run.has_own_end and run.ended_early is None:
            run.window_ends_seconds = run.last_measured_seconds or time.monotonic()
        facts = meter.facts(None if _is_short(run) else in_flight, rate, pace.bound)
        self._measured_ended(run)
        pace.close()
        self._wait(run, time.monotonic() + longest_request_seconds, lambda: not run.in_flight.total())
        return facts

    def _end_early(self, run: PhaseRun, reason: str) -> None:
        """Send nothing more; what has been sent so far is all that the phase has."""
        now_seconds = time.monotonic()
        run.pace.end()
        run.window_starts_seconds = min(run.window_starts_seconds, now_seconds)
        run.window_ends_seconds = now_seconds
        self._report({"event": "ended_early", **phase_names(run.phase), "reason": reason})

    def _conclude(self, run: PhaseRun) -> PhaseFigures | None:
        users = self._session.share.count(run.phase.level)
        closing = Closing(run.window_starts_seconds, run.window_ends_seconds, users, measured_unsent(run))
        answer: AsyncResult = self._desk.conclude(closing)
        self._wait(run, time.monotonic() + _RECORDING_SECONDS, answer.ready)
        if self._stop.is_set():
            return None
        if not answer.ready():
            raise LoadgenError(f"recording lags {_RECORDING_SECONDS:g} s behind; lower the load, or use more processes")
        figures: PhaseFigures = answer.get()
        return figures

    @staticmethod
    def _unsent(run: PhaseRun) -> int:
        """Measured requests that are due, that no user has been free for, and that will still be sent."""
        return 0 if run.ended_early is not None else run.unsent(run.window_ends_seconds)

    def _wait(self, run: PhaseRun, until_seconds: float, is_over: Callable[[], bool]) -> None:
        session = self._session
        next_report_seconds = time.monotonic() + _PROGRESS_SECONDS
        is_asked = False
        while not self._stop.is_set() and not is_over() and (now := time.monotonic()) < until_seconds:
            session.check()
            if missing := run.pace.missing_users():
                self._crowd.grow(missing)
            if is_asked:
                # the clerk has had one round's time to answer.
                self._report({"event": "progress", **phase_names(run.phase), **self._counts(run), **_rate(run)})
            if is_asked := now >= next_report_seconds:
                lag_seconds = session.meter.longest_lag_seconds()
                self._desk.ask(Asking(now, run.in_flight.total(), run.pace.users, lag_seconds))
                next_report_seconds += _PROGRESS_SECONDS
            self._stop.wait(min(_POLL_SECONDS, until_seconds - now))
        session.check()

    def _counts(self, run: PhaseRun) -> dict[str, Any]:
        counted = {
            (label, outcome): count
            for (index, label, outcome), count in self._desk.recorder.outcomes.items()
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
            "users": run.pace.users,
            "unsent": run.unsent(math.inf),
            "ended": sum(counted.values()),
            "completed": sum(count for (_, outcome), count in counted.items() if outcome is Outcome.COMPLETE),
            "measured": sum(count for (label, _), count in counted.items() if label is Label.MEASURED),
            "cancelled": sum(count for (_, outcome), count in counted.items() if outcome is Outcome.CANCELLED),
            "errors": errors,
            "loop_lag_seconds": round(self._session.meter.longest_lag_seconds(), 6),
            "live": self._desk.live,
        }


def measured_unsent(run: PhaseRun) -> int:
    """Requests due in the measured part that were never sent, because no user was free for them in time."""
    unsent = run.pace.waiting(run.window_ends_seconds) - run.pace.waiting(run.window_starts_seconds)
    return unsent if run.left is None else min(unsent, run.left)


def _window(run: PhaseRun) -> dict[str, Any]:
    """The measured part; its end is None while nobody knows it."""
    unix_offset_seconds = time.time() - time.monotonic()
    ends_seconds = run.window_ends_seconds if math.isfinite(run.window_ends_seconds) else None
    return {
        "window_starts_seconds": run.window_starts_seconds,
        "window_ends_seconds": ends_seconds,
        "window_starts_unix_seconds": run.window_starts_seconds + unix_offset_seconds,
        "window_ends_unix_seconds": None if ends_seconds is None else ends_seconds + unix_offset_seconds,
    }


def _rate(run: PhaseRun) -> dict[str, float]:
    # users may still be connecting.
    elapsed_seconds = max(0.0, time.monotonic() - run.started_seconds)
    ended = run.sent.total() - run.in_flight.total()
    rate = ended / elapsed_seconds if elapsed_seconds else 0.0
    return {"elapsed_seconds": round(elapsed_seconds, 3), "requests_per_second": round(rate, 3)}


def _is_short(run: PhaseRun) -> bool:
    """Whether a phase sends too few requests for its users to be all in flight for a while."""
    return run.phase.requests is not None and run.phase.requests < 2 * run.phase.level
