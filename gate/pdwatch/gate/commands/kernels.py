"""`pdwatch kernels`: the gate that every change of a kernel must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdwatch.gate.commands.kernels_bench import bench

kernels = typer.Typer(
    name="kernels",
    help="Check attention and indexer kernels, ours or your own, before they are served.",
    no_args_is_help=True,
)
kernels.command()(bench)


@kernels.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="Kernels to check, all if left out; a name may end in `*`."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. (default: a GPU if there is one)")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; each makes new inputs.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option("--check", metavar="CHECK", help="Only this check; repeatable.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report that opens offline.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr while working.")] = False,
) -> None:
    """Check kernels against their references: numerics, poison, invariance, capture, replay, streams, time.

    Kernels of other packages take part through the entry point group `pdwatch.kernels`. What needs a GPU is `not run`
    without one, and never a pass.

    Exit codes: 0 every check passed, 1 one failed, 2 something could not be checked, 3 could not run.

    Example:

      pdwatch kernels check 'sparse_mla.*' --seeds 20 --html kernels.html
    """
    # the harness loads PyTorch
    from pdwatch.kernels.harness import command

    code = command.check(
        names or (),
        device=device,
        seeds=seeds,
        first_seed=seed,
        checks=only or (),
        junit=junit,
        html=html,
        as_json=as_json,
        quiet=quiet,
    )
    raise typer.Exit(code)


@kernels.command("list")
def list_(
    checks: Annotated[bool, typer.Option("--checks", help="Also list the checks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the kernels that can be checked, and those that could not be loaded."""
    from pdwatch.kernels.harness import command

    command.list_kernels(as_json, checks)
