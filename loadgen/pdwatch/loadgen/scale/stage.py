"""Runs a plan's phases on all workers at once, and sums them up from the rows of all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

import gevent

# percentiles of many values load it, and two threads that load it at once each see a part of it under gevent.
import numpy  # noqa: F401  # for its loading alone

from ..capacity import CapacitySearch
from ..errors import LoadgenError
from ..live import Live
from ..plan import Phase, Plan, phase_names
from ..row import RequestRow
from ..search import Look, looks
from ..steady import Window, phase_window
from ..summary import PhaseSummary, margins, summarise
from ..transcript import Label, Outcome
from ..validity import ClientFacts, Validity
from .clock import ClockOffset, between
from .crew import Crew, Stopped, Worker, WorkerLost
from .facts import WorkerFacts, judge_workers, merged_facts, with_process

Report = Callable[[Mapping[str, Any]], None]

# the drivers tell theirs at the full second.
_AFTER_THEIRS_SECONDS: Final = 0.25

# from telling all when to begin to that time: what the message takes on a busy machine, and more.
_BEGIN_SECONDS: Final = 0.5
# making the first requests and connecting all users takes a while; this is far beyond it.
_READY_SECONDS: Final = 120.0
_WAVE_SECONDS: Final = 0.05
_PROGRESS_SECONDS: Final = 1.0


class Watcher(Protocol):
    """Shows a run while it runs."""

    def begin(self, phase: Phase) -> None:
        """A phase begins."""

    def row(self, row: RequestRow) -> None:
        """A request of it has ended."""

    def progress(self, figures: Mapping[str, Any]) -> None:
        """Once a second."""

    def end(self, summary: PhaseSummary, validity: Validity) -> None:
        """It has ended."""


@dataclass(slots=True)
class _Run:
    """A phase under way. `clocks` are the offsets at its beginning, by worker.

    `rows` of the whole phase are in memory until it is summed up, about 1.5 KB each and 16 bytes for each output
    token: the gaps between tokens and between chunks, of which percentiles over all workers need every one.
    """

    phase: Phase
    workers: Sequence[Worker]
    live: Live
    clocks: dict[int, ClockOffset]
    cpu_seconds: float
    rows: list[tuple[int, RequestRow]] = field(default_factory=list)
    ended: Counter[tuple[Label, Outcome]] = field(default_factory=Counter)
    begin_seconds: float = 0.0
    waves: int = 0
    is_released: bool = False
    ended_early: str | None = None


class Stage:
    """Tells the crew what to do. `clock_records` says how each phase's clocks were, for `workers.json`."""

    def __init__(self, plan: Plan, crew: Crew, report: Report, watchers: Sequence[Watcher]) -> None:
        self.clock_records: list[Mapping[str, Any]] = []
        self._plan = plan
        self._crew = crew
        self._report = report
        self._watchers = watchers
        self._run: _Run | None = None

    def run(self) -> dict[str, Any]:
        """Run all phases; what `done` tells. Raises LoadgenError, WorkerLost after the phase's end was reported."""
        plan = self._plan
        if plan.search is not None:
            return self._search(CapacitySearch(plan.search), plan.phases[0])
        for phase in plan.phases:
            self._run_phase(phase, {})
        return {"phases": len(plan.phases)}

    def row(self, worker: int, row: RequestRow) -> None:
        """A row of a worker's has come."""
        run = self._run
        if run is None or row.phase != run.phase.index:
            return
        run.rows.append((worker, row))
        run.ended[row.label, row.outcome] += 1
        row = _on_our_clock(row, run.clocks[worker])
        run.live.add(row)
        for watcher in self._watchers:
            watcher.row(row)

    def event(self, worker: Worker, event: Mapping[str, Any]) -> None:
        """A driver has told something."""
        run = self._run
        if run is None:
            return
        if event["event"] == "wave_wanted" and self._all(run, "wave_wanted", number=run.waves):
            run.waves += 1
            at_seconds = time.monotonic() + _WAVE_SECONDS
            is_warm_up = at_seconds < run.begin_seconds + run.phase.lead_seconds
            label = Label.WARMUP if is_warm_up else Label.MEASURED
            self._crew.tell(run.workers, {"do": "wave", "label": label.value, "at_seconds": at_seconds})
        elif event["event"] == "ended_early" and run.ended_early is None:
            run.ended_early = event["reason"]
            self._report({"event": "ended_early", **phase_names(run.phase), "reason": run.ended_early})
        elif event["event"] == "measured_ended" and self._all(run, "measured_ended", phase=run.phase.index):
            run.is_released = True
            self._crew.tell(run.workers, {"do": "release"})

    def _search(self, search: CapacitySearch, template: Phase) -> dict[str, Any]:
        phases = 0
        for look in looks(search, template):
            self._run_phase(look.phase, {"search_load": look.load}, look)
            phases += 1
        return {"phases": phases, "capacity": search.statement()}

    def _run_phase(
        self,
        phase: Phase,
        extra: dict[str, Any],
        look: Look | None = None,
    ) -> None:
        run = self._make_ready(phase)
        error: WorkerLost | Stopped | None = None
        try:
            self._load(run)
            self._crew.measure_clocks()
        except WorkerLost as lost:
            error = lost
            # what is left of it cannot be the load that was asked for.
            self._crew.close_drivers(is_early=True)
        self._conclude(run, extra, look)
        self._run = None
        if error is not None:
            raise error

    def _make_ready(self, phase: Phase) -> _Run:
        """All drivers ready, and told when to begin."""
        crew = self._crew
        crew.measure_clocks()
        workers = crew.workers[: phase.level]
        clocks = {worker.index: worker.clock for worker in workers}
        run = self._run = _Run(phase, workers, Live(self._plan.slo), clocks, time.process_time())
        for worker in workers:
            worker.events.clear()
        crew.tell(workers, {"do": "phase", "phase": phase.model_dump_json(), "of": len(workers)})
        limit_seconds = _READY_SECONDS + 2 * self._plan.connect_timeout_seconds * (1 + phase.level / 64)
        if not crew.wait(lambda: self._all(run, "ready", phase=phase.index), time.monotonic() + limit_seconds):
            late = [worker.title for worker in workers if not _has_told(worker, "ready", phase)]
            raise LoadgenError(f"phase {phase.index}: {late[0]} was not ready after {limit_seconds:.0f} s")
        run.begin_seconds = time.monotonic() + _BEGIN_SECONDS
        crew.tell(workers, {"do": "begin", "at_seconds": run.begin_seconds})
        crew.wait(lambda: self._all(run, "phase_start", phase=phase.index))
        for watcher in self._watchers:
            watcher.begin(phase)
        target = run.workers[0].events["phase_start"]["target"]
        self._report(
            {"event": "phase_start", **phase_names(phase), "target": target, **self._window(run, "phase_start")}
        )
        return run

    def _load(self, run: _Run) -> None:
        next_report_seconds = run.begin_seconds + _PROGRESS_SECONDS + _AFTER_THEIRS_SECONDS
        while not self._all(run, "phase_end", phase=run.phase.index):
            self._crew.pause()
            if time.monotonic() >= next_report_seconds:
                next_report_seconds += _PROGRESS_SECONDS
                self._report_progress(run)

    def _report_progress(self, run: _Run) -> None:
        now_seconds = time.monotonic()
        elapsed_seconds = now_seconds - run.begin_seconds
        ended = run.ended.total()
        if elapsed_seconds <= 0:
            return
        figures = {
            **self._counts(run, "progress"),
            "elapsed_seconds": round(elapsed_seconds, 3),
            "requests_per_second": round(ended / elapsed_seconds, 3),
            "live": run.live.figures(now_seconds),
        }
        for watcher in self._watchers:
            watcher.progress(figures)
        self._report({"event": "progress", **phase_names(run.phase), **figures})

    def _conclude(
        self,
        run: _Run,
        extra: dict[str, Any],
        look: Look | None,
    ) -> None:
        crew, plan, phase = self._crew, self._plan, run.phase
        clocks = {worker.index: between(run.clocks[worker.index], worker.clock) for worker in run.workers}
        facts = [
            self._facts(run, worker, clocks[worker.index])
            for worker in run.workers
            if _has_told(worker, "phase_end", phase)
        ]
        lost = [f"{worker.title} was lost: {worker.lost}" for worker in crew.workers if worker.lost is not None]
        validity = judge_workers(facts, plan.limits, lost)
        client = merged_facts(facts)
        cpu_seconds, elapsed_seconds = time.process_time() - run.cpu_seconds, time.monotonic() - run.begin_seconds
        client = with_process(
            client, "leader", {"cpu_seconds": cpu_seconds, "elapsed_seconds": max(0.0, elapsed_seconds)}
        )
        times = self._window(run, "phase_end", clocks)
        told = [worker.events["phase_end"] for worker in run.workers if _has_told(worker, "phase_end", phase)]
        unsent = sum(one["summary"]["unsent"] for one in told)

        def sum_up() -> tuple[Window, PhaseSummary, list[float]]:
            rows = [_on_our_clock(row, clocks[index]) for index, row in run.rows]
            starts, ends = times["window_starts_seconds"], times["window_ends_seconds"]
            window = phase_window(phase.load, phase.level, rows, starts, ends)
            taken = []
            if look is not None and plan.slo is not None:
                taken = margins(rows, window, plan.slo, unsent=unsent)
            return window, summarise(rows, window, plan.slo, unsent=unsent), taken

        # in a thread: the loop goes on telling the workers that we are there.
        window, summary, taken = gevent.get_hub().threadpool.apply(sum_up)
        records = [self._record(worker, clocks[worker.index]) for worker in run.workers]
        self.clock_records.append({"phase": phase.index, "workers": records})
        event = {
            "event": "phase_end",
            **phase_names(phase),
            **times,
            **self._counts(run, "phase_end"),
            "summary": summary.to_record(),
            "window": asdict(window),
            "client": client.model_dump(mode="json"),
            "validity": validity.model_dump(mode="json"),
            "workers": records,
            **({} if run.ended_early is None else {"ended_early": run.ended_early}),
            **extra,
        }
        if look is not None:
            event["decision"] = look.decide(window, taken, summary.in_flight_mean, validity)
        for watcher in self._watchers:
            watcher.end(summary, validity)
        self._report(event)

    def _facts(self, run: _Run, worker: Worker, clock: ClockOffset) -> WorkerFacts:
        ended, started = worker.events["phase_end"], worker.events["phase_start"]
        client = with_process(ClientFacts.model_validate(ended["client"]), "agent", ended["agent"])
        began_seconds = clock.to_ours(started["window_starts_seconds"]) - run.phase.lead_seconds
        lag_seconds = max(0.0, began_seconds - run.begin_seconds)
        return WorkerFacts(worker.index, client, lag_seconds, clock.uncertainty_seconds)

    def _record(self, worker: Worker, clock: ClockOffset) -> dict[str, Any]:
        ended = worker.events.get("phase_end")
        return {
            "worker": worker.index,
            "clock_offset_seconds": clock.offset_seconds,
            "clock_uncertainty_seconds": clock.uncertainty_seconds,
            "sent": None if ended is None else ended["sent"],
            "client": None if ended is None else ended["client"],
            "lost": worker.lost,
        }

    def _window(self, run: _Run, event: str, clocks: Mapping[int, ClockOffset] | None = None) -> dict[str, Any]:
        """The measured part that all workers have in common, on our clock."""
        clocks = clocks or run.clocks
        starts, ends = [], []
        for worker in run.workers:
            told = worker.events.get(event) or worker.events["phase_start"]
            starts.append(clocks[worker.index].to_ours(told["window_starts_seconds"]))
            if told["window_ends_seconds"] is not None:
                ends.append(clocks[worker.index].to_ours(told["window_ends_seconds"]))
        starts_seconds = max(starts)
        has_own_end = run.phase.requests is not None or run.phase.load.kind in ("waves", "replay")
        ends_seconds = (max(ends) if has_own_end else min(ends)) if ends else None
        if event == "phase_end":
            now_seconds = time.monotonic()
            # a phase that was broken off ends where it did.
            ends_seconds = max(starts_seconds, min(ends_seconds or now_seconds, now_seconds))
        unix_offset_seconds = time.time() - time.monotonic()
        return {
            "window_starts_seconds": starts_seconds,
            "window_ends_seconds": ends_seconds,
            "window_starts_unix_seconds": starts_seconds + unix_offset_seconds,
            "window_ends_unix_seconds": None if ends_seconds is None else ends_seconds + unix_offset_seconds,
        }

    def _counts(self, run: _Run, event: str) -> dict[str, Any]:
        told = [worker.events.get(event, {}) for worker in run.workers]
        sent = {label.value: sum(one.get("sent", {}).get(label.value, 0) for one in told) for label in Label}
        errors: Counter[str] = Counter()
        for (_, outcome), count in run.ended.items():
            if outcome not in (Outcome.COMPLETE, Outcome.CANCELLED):
                errors[outcome.value] += count
        return {
            "label": next((one["label"] for one in told if "label" in one), Label.WARMUP.value),
            "sent": sent,
            "in_flight": sum(one.get("in_flight", 0) for one in told),
            "ended": run.ended.total(),
            "completed": sum(count for (_, outcome), count in run.ended.items() if outcome is Outcome.COMPLETE),
            "measured": sum(count for (label, _), count in run.ended.items() if label is Label.MEASURED),
            "cancelled": sum(count for (_, outcome), count in run.ended.items() if outcome is Outcome.CANCELLED),
            "errors": dict(errors),
            "users": sum(one.get("users", 0) for one in told),
            "unsent": sum(one.get("unsent", 0) for one in told),
            "loop_lag_seconds": max((one.get("loop_lag_seconds", 0.0) for one in told), default=0.0),
        }

    def _all(self, run: _Run, event: str, **wanted: Any) -> bool:
        """Whether every driver of the phase has told this."""
        told = [worker.events.get(event) for worker in run.workers]
        return all(one is not None and wanted.items() <= one.items() for one in told)


def _on_our_clock(row: RequestRow, clock: ClockOffset) -> RequestRow:
    if not clock.offset_seconds:
        return row
    scheduled_seconds = row.scheduled_seconds
    return replace(
        row,
        scheduled_seconds=None if scheduled_seconds is None else clock.to_ours(scheduled_seconds),
        sent_seconds=clock.to_ours(row.sent_seconds),
        ended_seconds=clock.to_ours(row.ended_seconds),
    )


def _has_told(worker: Worker, event: str, phase: Phase) -> bool:
    told = worker.events.get(event)
    return told is not None and told["phase"] == phase.index
