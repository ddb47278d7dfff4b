"""One run of `pdwatch load`: folder, plan, load generator, `load.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pdwatch.gate.atomic import write_bytes_atomically
from pdwatch.gate.driver import Event, drive
from pdwatch.gate.errors import GateError
from pdwatch.gate.host import host_facts, software_versions
from pdwatch.gate.load.options import LoadOptions, driver_arguments
from pdwatch.gate.load.plan import make_load_plan
from pdwatch.gate.load.probe import Server, probe
from pdwatch.gate.load.results import LevelResult, LoadResult, level_result
from pdwatch.gate.planning import save_plan
from pdwatch.gate.redact import redact_command
from pdwatch.gate.run_folder import new_folder
from pdwatch.gate.signals import raise_on_signals
from pdwatch.loadgen import ClosedLoad, OpenLoad, Phase, Plan, RampLoad, WavesLoad

RESULT_NAME = "load.json"
LEADER = "pdwatch.loadgen.scale.lead"

Say = Callable[[str], None]


@dataclass(slots=True)
class Progress:
    """A run under way, for whoever shows it: finished levels, and the events of the one that runs."""

    plan: Plan
    levels: list[LevelResult] = field(default_factory=list)
    current: str | None = None
    live: Mapping[str, Any] = field(default_factory=dict)
    ended: int = 0
    in_flight: int = 0
    elapsed_seconds: float = 0.0


def run_load(
    options: LoadOptions, out: Path | None, command: Sequence[str], say: Say, show: Callable[[Progress], None]
) -> tuple[Path, LoadResult]:
    """Run the load that the options ask for; the folder and what was found, which `load.json` in it holds too.

    What ends a run after its first level stands in `failure`; what ends it before is raised, as GateError or PlanError.
    """
    server = probe(options)
    plan = make_load_plan(options, server)
    started = datetime.now(UTC)
    folder = new_folder(out, "load", started)
    save_plan(folder / "plan.json", plan)
    _tell(server, options, folder, say)
    progress = Progress(plan)
    watcher = _Watcher(progress, options.slo_share, say, show)
    failure: GateError | None = None
    arguments = driver_arguments(options)
    module = LEADER if arguments else None
    log = folder / "logs" / "loadgen.log"
    try:
        with raise_on_signals():
            drive(folder / "plan.json", folder, log, watcher, _nothing_to_check, module=module, arguments=arguments)
    except GateError as error:
        failure = error
    result = LoadResult(
        url=options.url,
        model=server.model,
        dialect=server.dialect,
        dialect_reason=server.dialect_reason,
        seed=options.seed,
        command=tuple(redact_command(command)),
        started_utc=started.isoformat(timespec="seconds"),
        versions=software_versions(),
        host=host_facts(),
        plan=plan.model_dump(mode="json"),
        levels=tuple(progress.levels),
        slo_share=None if plan.slo is None else options.slo_share,
        capacity=watcher.capacity,
        failure=None if failure is None else str(failure),
    )
    write_bytes_atomically(folder / RESULT_NAME, result.model_dump_json(indent=2).encode() + b"\n")
    if failure is not None and not progress.levels:
        raise failure
    return folder, result


def phase_name(phase: Phase, search_load: float | None = None) -> str:
    """What a phase is, in two words."""
    match phase.load:
        case OpenLoad(rate_per_second=rate):
            return f"{search_load or rate:g} req/s"
        case WavesLoad(sizes=sizes):
            return f"waves of {', '.join(map(str, sizes))}"
        case ClosedLoad() | RampLoad():
            users = int(search_load or phase.level)
            return f"{users} {'user' if users == 1 else 'users'}"
        case load:
            return load.kind


def _tell(server: Server, options: LoadOptions, folder: Path, say: Say) -> None:
    say(f"run folder {folder}")
    say(f"model `{server.model}`, dialect {server.dialect} ({server.dialect_reason})")
    if server.models and server.model not in server.models:
        say(f"warning: the server lists {', '.join(server.models[:5])}, not `{server.model}`")
    if options.insecure:
        say("warning: the server's certificate is not checked (--insecure)")


def _nothing_to_check() -> None:
    """There are no processes of ours but the load generator."""


class _Watcher:
    """Keeps the progress up to date with the load generator's events."""

    def __init__(self, progress: Progress, slo_share: float, say: Say, show: Callable[[Progress], None]) -> None:
        self.capacity: str | None = None
        self._say = say
        self._progress = progress
        self._slo_share = slo_share
        self._show = show

    def __call__(self, event: Event) -> None:
        progress = self._progress
        match event.get("event"):
            case "phase_start":
                progress.current = self._name(event)
                progress.live, progress.ended, progress.in_flight, progress.elapsed_seconds = {}, 0, 0, 0.0
            case "progress":
                progress.live = event.get("live") or {}
                progress.ended = int(event.get("ended", 0))
                progress.in_flight = int(event.get("in_flight", 0))
                progress.elapsed_seconds = float(event.get("elapsed_seconds", 0.0))
            case "phase_end":
                progress.levels.append(level_result(self._name(event), event, self._rate(event), self._slo_share))
                progress.current = None
            case "waiting":
                self._say(f"{event.get('joined')} of {event.get('wanted')} workers have joined")
            case "web":
                self._say(f"Locust's web UI is at {event.get('url')}")
            case "worker_lost":
                self._say(f"warning: worker {event.get('worker')} was lost: {event.get('reason')}")
            case "done":
                self.capacity = event.get("capacity")
        self._show(progress)

    def _phase(self, event: Event) -> Phase:
        phases = self._progress.plan.phases
        # a search repeats its only phase with other levels.
        phase = phases[min(int(event["phase"]), len(phases) - 1)]
        return phase.model_copy(update={"level": int(event["level"])})

    def _name(self, event: Event) -> str:
        return phase_name(self._phase(event), event.get("search_load"))

    def _rate(self, event: Event) -> float | None:
        load = self._phase(event).load
        return (event.get("search_load") or load.rate_per_second) if isinstance(load, OpenLoad) else None
