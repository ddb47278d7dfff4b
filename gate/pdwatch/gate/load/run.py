"""One run of `pdwatch load`: folder, plan, load generator, `load.json`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pdwatch.gate.atomic import write_bytes_atomically
from pdwatch.gate.errors import GateError
from pdwatch.gate.host import host_facts, software_versions
from pdwatch.gate.load.fork import can_copy, drive_in_copy
from pdwatch.gate.load.options import LoadOptions, driver_arguments
from pdwatch.gate.load.plan import make_load_plan
from pdwatch.gate.load.probe import Server, probe
from pdwatch.gate.load.progress import Progress, Say, Watcher
from pdwatch.gate.load.results import LoadResult
from pdwatch.gate.load.source import source_words
from pdwatch.gate.new_folder import new_folder
from pdwatch.gate.redact import redact_command
from pdwatch.gate.signals import raise_on_signals
from pdwatch.loadgen import Plan

RESULT_NAME = "load.json"
LEADER = "pdwatch.loadgen.scale.lead"


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
    write_bytes_atomically(folder / "plan.json", plan.model_dump_json(indent=2).encode() + b"\n")
    if options.source is not None:
        # the plan says it all; this is how it was asked for.
        shutil.copyfile(options.source, folder / f"source{options.source.suffix}")
    _tell(server, options, plan, folder, say)
    progress = Progress(plan)
    watcher = Watcher(progress, options.slo_share, say, show)
    failure: GateError | None = None
    try:
        with raise_on_signals():
            _drive(options, folder, watcher)
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


def _drive(options: LoadOptions, folder: Path, watcher: Watcher) -> None:
    plan, log = folder / "plan.json", folder / "logs" / "loadgen.log"
    arguments = driver_arguments(options)
    if not arguments and can_copy():
        drive_in_copy(plan, folder, log, watcher)
        return
    from pdwatch.gate.driver import drive

    drive(plan, folder, log, watcher, None, module=LEADER if arguments else None, arguments=arguments)


def _tell(server: Server, options: LoadOptions, plan: Plan, folder: Path, say: Say) -> None:
    say(f"run folder {folder}")
    say(f"model `{server.model}`, dialect {server.dialect} ({server.dialect_reason})")
    say(f"requests {source_words(plan.source)}")
    if server.models and server.model not in server.models:
        say(f"warning: the server lists {', '.join(server.models[:5])}, not `{server.model}`")
    if options.insecure:
        say("warning: the server's certificate is not checked (--insecure)")
