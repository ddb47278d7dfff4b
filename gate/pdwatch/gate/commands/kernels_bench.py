"""`pdwatch kernels bench`: how fast the kernels are, beside what would be used otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    families: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FAMILY]…", help="sparse_mla, indexer_logits, indexer_topk; all if left out.", show_default=False
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Batch sizes. (default 1,4,16,64,128,256)")
    ] = None,
    contexts: Annotated[
        str | None, typer.Option(metavar="L,L,…", help="Contexts in tokens. (default 2K,4K,32K,128K,512K,1M)")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show an earlier result; measures nothing.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result, after each case what there is.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot, SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr while working.")] = False,
) -> None:
    """Time the production kernels on this GPU beside FlashMLA, DeepGEMM, a per-head kernel and eager PyTorch.

    Times are medians of CUDA-graph replays over inputs that no cache holds, set against the copy bandwidth and bf16
    rate measured in the same run. A peer that is not installed is left out, and the bars that need it are not measured.

    Exit codes: 0 every bar is held, 1 one is missed, 2 one was not measured, 3 could not run.

    Examples:

      pdwatch kernels bench --json-file bench.json --plot bench.svg

      pdwatch kernels bench sparse_mla --batches 1,64

      pdwatch kernels bench --from bench.json
    """
    # the benchmark loads PyTorch
    from pdwatch.kernels.bench import command
    from pdwatch.kernels.bench.cases import BATCHES, CONTEXTS

    code = command.bench(
        families or (),
        batches=command.numbers(batches) if batches is not None else BATCHES,
        contexts=command.numbers(contexts) if contexts is not None else CONTEXTS,
        source=source,
        json_file=json_file,
        plot=plot,
        as_json=as_json,
        quiet=quiet,
    )
    raise typer.Exit(code)
