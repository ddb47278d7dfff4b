"""A load run under way, kept up to date with the load generator's events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pdwatch.gate.load.results import LevelResult, level_result
from pdwatch.loadgen import ClosedLoad, OpenLoad, Phase, Plan, RampLoad, WavesLoad

Event = Mapping[str, Any]
Say = Callable[[str], None]


@dataclass(slots=True)
class Progress:
    """A run under way, for whoever shows it: finished levels, and the events of the one that runs.

    `current` is its name, `note` what else there is to say at its start.
    """

    plan: Plan
    levels: list[LevelResult] = field(default_factory=list)
    current: str | None = None
    note: str = ""
    live: Mapping[str, Any] = field(default_factory=dict)
    ended: int = 0
    in_flight: int = 0
    elapsed_seconds: float = 0.0


class Watcher:
    """Takes the load generator's events into a Progress, and shows it after each."""

    def __init__(self, progress: Progress, slo_share: float, say: Say, show: Callable[[Progress], None]) -> None:
        self.capacity: str | None = None
        self._say = say
        self._progress = progress
        self._slo_share = slo_share
        self._show = show
        self._looks: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        progress = self._progress
        match event.get("event"):
            case "phase_start":
                progress.current = self._name(event)
                progress.note = self._look(progress.current, event)
                progress.live, progress.ended, progress.in_flight, progress.elapsed_seconds = {}, 0, 0, 0.0
            case "progress":
                progress.live = event.get("live") or {}
                progress.ended = int(event.get("ended", 0))
                progress.in_flight = int(event.get("in_flight", 0))
                progress.elapsed_seconds = float(event.get("elapsed_seconds", 0.0))
            case "phase_end":
                name = self._name(event)
                look = None if progress.plan.search is None else self._looks[name] + 1
                level = level_result(name, event, self._rate(event), self._slo_share, look)
                # one that the client spoilt is done again.
                self._looks[name] += level.is_judged
                progress.levels.append(level)
                progress.current = None
            case "ended_early":
                self._say(f"error: {self._name(event)} ended early: {event.get('reason')}")
            case "waiting":
                self._say(f"{event.get('joined')} of {event.get('wanted')} workers have joined")
            case "web":
                self._say(f"Locust's web UI is at {event.get('url')}")
            case "worker_lost":
                self._say(f"warning: worker {event.get('worker')} was lost: {event.get('reason')}")
            case "done":
                self.capacity = event.get("capacity")
        self._show(progress)

    def _look(self, name: str, event: Event) -> str:
        """Of a search: which look at a load this is, of how many at most, and about how long it will take."""
        search = self._progress.plan.search
        if search is None:
            return ""
        words = f"look {self._looks[name] + 1} of at most {search.looks}"
        requests = event.get("requests")
        if requests is None:
            return words
        rate = self._rate(event) or self._expected_rate(int(event["level"]))
        if rate is None:
            return f"{words}: {requests} requests"
        seconds = requests / rate + self._phase(event).warmup_seconds
        return f"{words}: {requests} requests, about {_duration(seconds)}"

    def _expected_rate(self, users: int) -> float | None:
        """Requests/s at a number of users, as if each fared as those of the nearest load so far."""
        known = [level for level in self._progress.levels if level.summary.complete_per_second]
        if not known:
            return None
        nearest = min(known, key=lambda level: abs(level.level - users))
        return (nearest.summary.complete_per_second or 0.0) * users / nearest.level

    def _phase(self, event: Event) -> Phase:
        phases = self._progress.plan.phases
        # a search repeats its only phase with other levels.
        phase = phases[min(int(event["phase"]), len(phases) - 1)]
        return phase.model_copy(update={"level": int(event["level"])})

    def _name(self, event: Event) -> str:
        return phase_name(self._phase(event), self._rate(event))

    def _rate(self, event: Event) -> float | None:
        load = self._phase(event).load
        if not isinstance(load, OpenLoad):
            return None
        return event.get("rate_per_second") or event.get("search_load") or load.rate_per_second


def phase_name(phase: Phase, rate_per_second: float | None = None) -> str:
    """What a phase is, in two words. A search varies the rate."""
    match phase.load:
        case OpenLoad(rate_per_second=rate):
            return f"{rate_per_second or rate:g} req/s"
        case WavesLoad(sizes=sizes):
            return f"waves of {', '.join(map(str, sizes))}"
        case ClosedLoad() | RampLoad():
            return f"{phase.level} {'user' if phase.level == 1 else 'users'}"
        case load:
            return load.kind


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
