"""`pdwatch up`, `status`, `down` and `faults`: the embedded deployment by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pdwatch.gate.commands.engine_options import Assignments, Kernels, engine_settings, with_environment
from pdwatch.gate.console import Talk, open_talk
from pdwatch.gate.printable import printable
from pdwatch.stack import (
    DeploymentSpec,
    Phase,
    ProcessState,
    ProcessStatus,
    SupervisorState,
    bring_up,
    check_settings,
    is_healthy,
    read_state,
    take_down,
)

EXIT_NOT_HEALTHY = 3
# a table in a pipe must not be cut to a terminal's width
_PIPE_WIDTH = 400

Directory = Annotated[
    Path, typer.Option("--directory", "-d", help="Where its state and logs lie.", envvar="PDWATCH_DIRECTORY")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def up(
    directory: Directory = Path(".pdwatch"),
    prefill: Annotated[int, typer.Option(help="Number of prefill workers, 1 to 16.")] = 1,
    decode: Annotated[int, typer.Option(help="Number of decode workers, 1 to 16.")] = 1,
    reference: Annotated[bool, typer.Option(help="Also start the eager reference, as its own endpoint.")] = True,
    router: Annotated[bool, typer.Option(help="Put sglang-router in front of the workers.")] = True,
    port: Annotated[int | None, typer.Option(help="Port of the router; a free one if left out.")] = None,
    fault: Annotated[str | None, typer.Option(help="Switch on a fault; `pdwatch faults` lists them.")] = None,
    fault_seed: Annotated[int, typer.Option(help="Seed of the fault's choices.")] = 0,
    prefix_cache: Annotated[
        bool | None, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse the KV of equal prompt beginnings.")
    ] = None,
    kernels: Kernels = None,
    engine: Assignments = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights file (.safetensors) instead of the shipped one.")
    ] = None,
    timeout_seconds: Annotated[float, typer.Option(help="Give up when it is not ready by then.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Start the embedded deployment in the background and print its endpoints once it is ready.

    It runs until `pdwatch down`; its logs go to DIRECTORY/logs.
    """
    settings = with_environment(engine_settings(engine or (), prefix_cache=prefix_cache, kernels=kernels))
    spec = DeploymentSpec.checked(
        prefill=prefill,
        decode=decode,
        reference=reference,
        router=router,
        fault=fault,
        fault_seed=fault_seed,
        engine=settings,
        ports={} if port is None else {"router": port},
        weights=weights,
    )
    # what is refused is refused before anything is said or started
    check_settings(spec)
    with open_talk() as talk:
        talk.begin("starting the deployment")
        state = bring_up(spec, directory, timeout_seconds, _Progress(talk))
        talk.end(f"{len(state.processes)} processes are ready")
    _print_state(state, directory, as_json)


def status(directory: Directory = Path(".pdwatch"), as_json: AsJson = False) -> None:
    """Show each process of the deployment started by `pdwatch up`; exit 3 unless all of them are healthy."""
    state = read_state(directory)
    _print_state(state, directory, as_json)
    if state.error is not None:
        print(f"the deployment failed: {printable(state.error)}", file=sys.stderr)
    if state.phase is not Phase.READY or not all(map(_healthy, state.processes)):
        raise typer.Exit(EXIT_NOT_HEALTHY)


def down(directory: Directory = Path(".pdwatch")) -> None:
    """Stop the deployment started by `pdwatch up`; not an error when there is none."""
    stopped = take_down(directory)
    print(f"stopped the deployment in {directory}" if stopped else f"nothing runs in {directory}", file=sys.stderr)


def faults(as_json: AsJson = False) -> None:
    """List the faults that `up --fault` and `gate --fault` can switch on."""
    # the catalogue loads the engine, and that loads PyTorch
    from pdwatch.stack.embedded.faults import catalogue

    listed = catalogue()
    if as_json:
        print(json.dumps([asdict(fault) for fault in listed], indent=2))
        return
    _print_table(
        ("name", "signature", "where", "what happens"),
        ((fault.name, fault.signature, fault.where, fault.description) for fault in listed),
    )


class _Progress:
    """Tells each process that is ready, and how long it took."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def __call__(self, status: ProcessStatus) -> None:
        if status.state is ProcessState.READY and status.ready_after_seconds is not None:
            self._talk.say(f"{status.name} ready after {status.ready_after_seconds:.1f} s")


def _healthy(process: ProcessStatus) -> bool:
    return process.state is ProcessState.READY and is_healthy(process.url)


def _print_state(state: SupervisorState, directory: Path, as_json: bool) -> None:
    if not as_json:
        columns = ("process", "state", "healthy", "pid", "url", "log")
        _print_table(columns, (_row(process) for process in state.processes))
        return
    document = state.model_dump(mode="json", include={"phase", "pid", "endpoints", "error"})
    document["directory"] = str(directory.absolute())
    document["processes"] = [
        {**record, "healthy": _healthy(process)}
        for record, process in zip(state.model_dump(mode="json")["processes"], state.processes, strict=True)
    ]
    print(json.dumps(document, indent=2))


def _row(process: ProcessStatus) -> tuple[str, ...]:
    return (
        process.name,
        process.state,
        "yes" if _healthy(process) else "no",
        "" if process.pid is None else str(process.pid),
        process.url,
        str(process.log_path),
    )


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # as Text, so that brackets in a value are not taken for markup
        table.add_row(*(Text(printable(value)) for value in row))
    console.print(table)
