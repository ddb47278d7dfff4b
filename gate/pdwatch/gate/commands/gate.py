"""`pdwatch gate`: up, drive, judge, report, down."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pdwatch.gate.commands.engine_options import Assignments, Kernels, engine_settings, with_environment

EXISTING = "An existing deployment"
CANDIDATE_ENGINE = "The embedded candidate's engine"


def gate(
    levels: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Concurrent users per level. (default 1,4,16,32)")
    ] = None,
    window_seconds: Annotated[
        float | None, typer.Option(help="Measured window of the candidate at each level. (default 10)")
    ] = None,
    warmup_seconds: Annotated[
        float | None, typer.Option(help="Warm-up before each window; does not count. (default 2)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of tasks, cancellations and bootstrap. (default 1)")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder. (default runs/<UTC time>-seed<seed>)")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Policy file, TOML.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One policy key, as `--set regression.tpot_ratio=1.05`."),
    ] = None,
    fault: Annotated[
        str | None, typer.Option(metavar="NAME", help="Switch on a fault in the candidate; see `pdwatch faults`.")
    ] = None,
    fault_seed: Annotated[int, typer.Option(help="Seed of the fault's choices.")] = 0,
    baseline: Annotated[
        bool,
        typer.Option("--baseline/--no-baseline", help="Drive a baseline beside the candidate, to find slow-downs."),
    ] = True,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights of the embedded model (.safetensors).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the embedded candidate's router. (default a free one)")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE", help="Where every worker computes: cpu, cuda, cuda:N.", rich_help_panel=CANDIDATE_ENGINE
        ),
    ] = None,
    kernels: Kernels = None,
    capture: Annotated[
        bool | None,
        typer.Option(
            "--capture/--no-capture", help="Decode through CUDA graphs; needs CUDA.", rich_help_panel=CANDIDATE_ENGINE
        ),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Indexer on a stream of its own in the capture: off, on, racy.",
            rich_help_panel=CANDIDATE_ENGINE,
        ),
    ] = None,
    engine: Assignments = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Router to drive; nothing is started then.", rich_help_panel=EXISTING),
    ] = None,
    prefill_url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A prefill worker, for its metrics; repeatable.", rich_help_panel=EXISTING),
    ] = None,
    decode_url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A decode worker, for its metrics; repeatable.", rich_help_panel=EXISTING),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="URL", help="The same model served eagerly.", rich_help_panel=EXISTING)
    ] = None,
    baseline_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Router of a deployment to compare with.", rich_help_panel=EXISTING),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model name to send. (default the first one served)", rich_help_panel=EXISTING),
    ] = None,
    bearer_token_environment: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the bearer token.", rich_help_panel=EXISTING),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr while working.")] = False,
) -> None:
    """Drive a deployment at rising concurrency, judge every answer, and give a verdict.

    Without --target it starts the embedded deployment (prefill, decode, router,
    eager reference, and a baseline beside it) and stops it at the end.
    Kernels, capture and overlap are the candidate's alone: the baseline and the
    reference stay eager, on the same device.
    The verdict, the report and all raw data are in the run folder.

    Exit codes: 0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 could not run.

    Examples:

      pdwatch gate

      pdwatch gate --fault index_k_aliased --levels 1,8

      pdwatch gate --device cuda --kernels triton --capture --overlap racy

      pdwatch gate --target http://router:30000 --reference http://eager:30002
    """
    # heavy imports wait until the command line has been read
    from pdwatch.gate.commands.summary import print_verdict
    from pdwatch.gate.console import open_talk
    from pdwatch.gate.errors import PolicyError
    from pdwatch.gate.policy import load_policy

    options: dict[str, Any] = {
        "load.levels": levels,
        "load.window_seconds": window_seconds,
        "load.warmup_seconds": warmup_seconds,
        "load.seed": seed,
        "targets.router": target,
        "targets.prefill": prefill_url or None,
        "targets.decode": decode_url or None,
        "targets.reference": reference,
        "targets.baseline": baseline_url,
        "targets.model": model,
        "targets.bearer_token_environment": bearer_token_environment,
    }
    policy = load_policy(config, assignments or (), options)
    if not baseline:
        policy = policy.without_baseline()
    targets = policy.targets
    if targets.router is None and (targets.prefill or targets.decode or targets.reference or targets.baseline):
        raise PolicyError("an existing deployment's workers are named without its router: add --target URL")

    settings = engine_settings(
        engine or (), device=device, kernels=kernels, capture=capture, multi_stream_overlap=overlap
    )
    from pdwatch.gate.session import GateRequest, run_gate

    request = GateRequest(
        policy=policy,
        out=out,
        fault=fault,
        fault_seed=fault_seed,
        weights=weights,
        with_baseline=baseline,
        ports=None if port is None else {"router": port},
        engine=settings if targets.router is not None else with_environment(settings),
        command=("pdwatch", *sys.argv[1:]),
    )
    with open_talk(quiet) as talk:
        folder, verdict = run_gate(request, talk)
    print_verdict(folder, verdict, as_json)
    raise typer.Exit(verdict.exit_code)
