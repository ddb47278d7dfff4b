"""`pdwatch load`: load any OpenAI-compatible server and measure it."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

SHAPE = "Load"
REQUESTS = "Requests"
JUDGEMENT = "Limits"
SERVER = "Server"
SCALE = "Scale"


class Arrivals(StrEnum):
    """Values of --arrivals."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


class DialectChoice(StrEnum):
    """Values of --dialect."""

    AUTO = "auto"
    SGLANG = "sglang"
    OPENAI = "openai"


def load(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Base URL of the server, as http://127.0.0.1:8000.")],
    levels: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Users in closed loop, one level after another. (default 1,4,16)"),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Measured requests of each level, instead of --duration.")
    ] = None,
    duration: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Measured part of each level; what it sent is let to end.")
    ] = 20.0,
    warmup: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Load before the measured part; does not count.")
    ] = 3.0,
    rate: Annotated[
        str | None,
        typer.Option(metavar="R[,R,…]", help="Open loop: requests per second, on a schedule.", rich_help_panel=SHAPE),
    ] = None,
    arrivals: Annotated[
        Arrivals, typer.Option(help="How the schedule of --rate is drawn.", rich_help_panel=SHAPE)
    ] = Arrivals.POISSON,
    burstiness: Annotated[
        float,
        typer.Option(min=0.01, help="Shape of gamma arrivals; 1 is Poisson, less is burstier.", rich_help_panel=SHAPE),
    ] = 1.0,
    most_in_flight: Annotated[
        int,
        typer.Option(min=1, max=100_000, metavar="N", help="Bound of --rate and --replay.", rich_help_panel=SHAPE),
    ] = 1024,
    ramp: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Let each level's users join evenly.", rich_help_panel=SHAPE),
    ] = None,
    stagger: Annotated[
        float | None,
        typer.Option(
            min=0.0001, metavar="SECONDS", help="Begin users one by one, so far apart.", rich_help_panel=SHAPE
        ),
    ] = None,
    waves: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…", help="Send so many at once, the next wave when all have ended.", rich_help_panel=SHAPE
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often --waves are gone through.", rich_help_panel=SHAPE)
    ] = 3,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Send a trace at its own times (Mooncake or JSONL).", rich_help_panel=SHAPE),
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0.001, metavar="X", help="Replay X times as fast.", rich_help_panel=SHAPE)
    ] = 1.0,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="KIND[:FILE]",
            help="text, tool_calls, openai:FILE, sharegpt:FILE, bfcl, mooncake:FILE. (default text)",
            rich_help_panel=REQUESTS,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML or JSON of a plan's source: sessions, long contexts, shared prefixes, …",
            rich_help_panel=REQUESTS,
        ),
    ] = None,
    prompt_words: Annotated[
        str | None,
        typer.Option(
            metavar="N[-M]", help="Words of a text prompt, about a token each. (default 200)", rich_help_panel=REQUESTS
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="M", help="Most tokens of an answer. (text: 128)", rich_help_panel=REQUESTS),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Make answers --max-tokens long (SGLang, vLLM).", rich_help_panel=REQUESTS),
    ] = False,
    has_no_usage: Annotated[
        bool,
        typer.Option(
            "--no-usage", help="Take answers without usage for complete; no token metrics.", rich_help_panel=REQUESTS
        ),
    ] = False,
    cancel_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Share of requests to disconnect from.", rich_help_panel=REQUESTS)
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of prompts, arrivals and cancellations.", rich_help_panel=REQUESTS)
    ] = 1,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Longest a request may take.", rich_help_panel=REQUESTS)
    ] = 300.0,
    slo: Annotated[
        str | None,
        typer.Option(metavar="LIMITS", help="As ttft=1s,tpot=50ms; also e2e and stall.", rich_help_panel=JUDGEMENT),
    ] = None,
    slo_share: Annotated[
        float,
        typer.Option(
            min=0.01, max=0.9999, help="Share of requests that must keep to --slo.", rich_help_panel=JUDGEMENT
        ),
    ] = 0.95,
    check_slo: Annotated[
        bool, typer.Option("--check-slo", help="Exit 1 when a level misses the SLO.", rich_help_panel=JUDGEMENT)
    ] = False,
    find_capacity: Annotated[
        bool,
        typer.Option(
            "--find-capacity", help="Search the most users (or --rate) that meet --slo.", rich_help_panel=JUDGEMENT
        ),
    ] = False,
    most: Annotated[
        float, typer.Option(min=1, metavar="N", help="Where --find-capacity ends.", rich_help_panel=JUDGEMENT)
    ] = 512.0,
    most_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="MINUTES",
            help="Time for --find-capacity; then it says what it knows.",
            rich_help_panel=JUDGEMENT,
        ),
    ] = None,
    max_loop_lag: Annotated[
        float | None,
        typer.Option(
            min=0.0001,
            metavar="SECONDS",
            help="A level is INVALID when the client is later than this, p99. (default 0.1)",
            rich_help_panel=JUDGEMENT,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for. (default the first one served)", rich_help_panel=SERVER)
    ] = None,
    dialect: Annotated[
        DialectChoice,
        typer.Option(help="How the first token shows; auto looks at /server_info.", rich_help_panel=SERVER),
    ] = DialectChoice.AUTO,
    bearer_token_environment: Annotated[
        str | None,
        typer.Option(
            "--bearer-token-env",
            "--bearer-token-environment",
            metavar="VARIABLE",
            help="Environment variable with the bearer token.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates to check the server's by.", rich_help_panel=SERVER)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not check the server's certificate.", rich_help_panel=SERVER)
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, max=1024, metavar="N", help="Share the load among N drivers.", rich_help_panel=SCALE)
    ] = 1,
    expect_workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, metavar="N", help="Wait for N `pdwatch load-worker` to join.", rich_help_panel=SCALE
        ),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where they join. (default 127.0.0.1:5557)", rich_help_panel=SCALE),
    ] = None,
    web: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Show the run in Locust's web UI there.", rich_help_panel=SCALE),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder. (default runs/<UTC time>-load)")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, metavar="PORT", help="Serve pdwatch_loadgen_* at 127.0.0.1:PORT/metrics."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr while working.")] = False,
) -> None:
    """Load an OpenAI-compatible server and measure it, with proof that the client was not the limit.

    Each level is warmed up, measured and drained; figures are of its steady part.
    A level beyond what this client can do is INVALID, not slow.

    Exit codes: 0 measured, 1 SLO missed (--check-slo), 2 a level INVALID, without
    an answer, or (--check-slo) with too few requests to tell, 3 could not run.

    Examples:

      pdwatch load http://127.0.0.1:8000

      pdwatch load http://127.0.0.1:8000 --levels 1,16,64 --requests 640 --max-tokens 128

      pdwatch load http://127.0.0.1:8000 --rate 2,4,8 --slo ttft=1s,tpot=50ms --check-slo

      pdwatch load http://127.0.0.1:8000 --find-capacity --slo ttft=1s,tpot=50ms

      pdwatch load http://127.0.0.1:8000 --source sessions.toml
    """
    # looking through all that is installed for plugins of pydantic's, of which we have none, takes 10 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # heavy imports wait until the command line has been read
    from pdwatch.gate.load.display import open_display
    from pdwatch.gate.load.options import LoadOptions
    from pdwatch.gate.load.run import run_load
    from pdwatch.gate.load.show import print_result

    options = LoadOptions(
        url=url,
        levels=levels,
        requests=requests,
        duration=duration,
        warmup=warmup,
        rate=rate,
        arrivals=arrivals.value,
        burstiness=burstiness,
        most_in_flight=most_in_flight,
        ramp=ramp,
        stagger=stagger,
        waves=waves,
        repeats=repeats,
        replay=replay,
        speed=speed,
        source=source,
        workload=workload,
        prompt_words=prompt_words,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        has_no_usage=has_no_usage,
        cancel_rate=cancel_rate,
        seed=seed,
        slo=slo,
        slo_share=slo_share,
        check_slo=check_slo,
        find_capacity=find_capacity,
        most=most,
        most_minutes=most_minutes,
        model=model,
        dialect=dialect.value,
        timeout=timeout,
        bearer_token_environment=bearer_token_environment,
        ca_file=ca_file,
        insecure=insecure,
        max_loop_lag=max_loop_lag,
        metrics_port=metrics_port,
        processes=processes,
        expect_workers=expect_workers,
        bind=bind,
        web=web,
        given=_given(context) & {field.name for field in fields(LoadOptions)},
    )
    with open_display(quiet) as display:
        folder, result = run_load(options, out, ("pdwatch", *sys.argv[1:]), display.say, display.show)
    exit_code = result.exit_code(checks_slo=check_slo)
    print_result(folder, result, exit_code, as_json)
    raise typer.Exit(exit_code)


def _given(context: typer.Context) -> frozenset[str]:
    """The parameters that the command line has."""
    return frozenset(
        name for name in context.params if (told := context.get_parameter_source(name)) and told.name == "COMMANDLINE"
    )
