"""`pdwatch export gpu` and `export profile`: exporters for Prometheus."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdwatch.gate.commands.output import write_out
from pdwatch.gate.printable import printable

if TYPE_CHECKING:
    from pdwatch.exporters import MetricSource
    from pdwatch.exporters.profile import Capturer, HistoryFile, KernelRules, Profile, Target

# ports of their own, next to each other, that no known exporter uses
_GPU_ADDRESS = "127.0.0.1:9520"
_PROFILE_ADDRESS = "127.0.0.1:9521"

export = typer.Typer(
    name="export",
    help="Serve what SGLang's own metrics do not tell, for Prometheus. Loopback unless --listen says otherwise.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Limit = Annotated[float, typer.Option("--limit", min=0.1, max=300, help="Seconds that one collection may take.")]


@export.command()
def gpu(
    listen: Annotated[str, typer.Option(help="host:port to serve on.")] = _GPU_ADDRESS,
    demo: Annotated[bool, typer.Option("--demo", help="Eight GPUs replayed from a recorded H200.")] = False,
    recording: Annotated[Path | None, typer.Option(help="Replay this recording instead of asking NVML.")] = None,
    process_memory: Annotated[bool, typer.Option("--process-memory", help="Memory by systemd unit too.")] = False,
    unit: Annotated[
        list[str] | None, typer.Option(help="Pattern of units that get a series of their own [default: *.service].")
    ] = None,
    limit: Limit = 5.0,
) -> None:
    """GPUs of this machine through NVML: activity, power, throttling, memory, links, errors, XIDs, MIG."""
    from pdwatch.exporters.gpu import (
        DEFAULT_UNITS,
        BoundNvml,
        GpuSource,
        Nvml,
        ReplayNvml,
        UnitsOfProcesses,
        demo_recording,
        multiplied,
        read_recording,
    )

    nvml: Nvml
    if recording is not None:
        nvml = ReplayNvml(read_recording(recording))
    elif demo:
        nvml = ReplayNvml(multiplied(demo_recording()))
    else:
        nvml = BoundNvml()
    units = UnitsOfProcesses(unit or DEFAULT_UNITS) if process_memory or unit else None
    _serve("gpu", GpuSource(nvml, units=units), listen, limit)


@export.command()
def profile(
    listen: Annotated[str, typer.Option(help="host:port to serve on.")] = _PROFILE_ADDRESS,
    history: Annotated[Path, typer.Option(help="Where profiles are kept, one a line.")] = Path(
        ".pdwatch/profiles.jsonl"
    ),
    keep: Annotated[int, typer.Option(min=10, help="Profiles kept of each target and rank.")] = 500,
    file: Annotated[
        list[Path] | None, typer.Option(help="Profile this trace, keep and print the result, and end.")
    ] = None,
    name: Annotated[str, typer.Option(help="Target that the traces of --file are kept under.")] = "file",
    target: Annotated[list[str] | None, typer.Option(help="A server to profile: name=http://host:port.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Profile the targets now, print, and end.")] = False,
    every: Annotated[
        float, typer.Option(min=0, help="Minutes between profiles of the targets; 0 takes none while serving.")
    ] = 0.0,
    steps: Annotated[int, typer.Option(min=3, max=1000, help="Steps in a profile.")] = 30,
    directory: Annotated[Path, typer.Option(help="Folder that the servers write and we read.")] = Path(
        ".pdwatch/traces"
    ),
    fewest_running: Annotated[int, typer.Option(min=0, help="No profile below so many running requests.")] = 1,
    most_running: Annotated[int, typer.Option(min=0, help="No profile above so many running requests.")] = 64,
    graphs_per_step: Annotated[
        int, typer.Option(min=1, help="CUDA graphs launched in a step, where no spans mark the steps.")
    ] = 1,
    keep_traces: Annotated[bool, typer.Option("--keep-traces", help="Do not delete traces once profiled.")] = False,
    rules: Annotated[Path | None, typer.Option(help="Rules that group kernels, instead of ours (TOML).")] = None,
    limit: Limit = 5.0,
) -> None:
    """Where the time of a decode step goes, by groups of kernels, and how that changed."""
    from pdwatch.exporters.profile import (
        Capturer,
        CaptureSettings,
        HistoryFile,
        LoadGuard,
        ProfileSource,
        Schedule,
        Target,
        profile_trace,
        read_rules,
    )

    if once and not target:
        raise typer.BadParameter("--once needs a --target")
    kernel_rules = read_rules(rules)
    kept = HistoryFile(history, keep)
    if file:
        for path in file:
            found = profile_trace(
                path, kernel_rules, target=name, unix_seconds=time.time(), graphs_per_step=graphs_per_step
            )
            kept.append(found)
            _show(found, kernel_rules)
        return
    settings = CaptureSettings(
        directory=directory,
        steps=steps,
        guard=LoadGuard(fewest_running, most_running),
        graphs_per_step=graphs_per_step,
        keep_traces=keep_traces,
    )
    targets = [Target.parse(text) for text in target or ()]
    if once:
        _take_once(Capturer(settings, kernel_rules), targets, kept, kernel_rules)
        return
    schedule = None
    if targets and every > 0:
        schedule = Schedule(Capturer(settings, kernel_rules), targets, kept, every * 60)
    _serve("profile", ProfileSource(kept, schedule), listen, limit)


def _take_once(capturer: Capturer, targets: list[Target], history: HistoryFile, rules: KernelRules) -> None:
    try:
        for target in targets:
            found = capturer.capture(target)
            history.append(found)
            _show(found, rules)
    finally:
        capturer.close()


def _serve(name: str, source: MetricSource, listen: str, limit_seconds: float) -> None:
    from pdwatch.exporters import Exporter, parse_address, serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # a request a line at every scrape is nothing to log
    logging.getLogger("httpx").setLevel(logging.WARNING)
    host, port = parse_address(listen)
    serve(Exporter(name, source, limit_seconds=limit_seconds), host, port)


def _show(profiles: list[Profile], rules: KernelRules) -> None:
    lines = []
    for profile in profiles:
        steps = profile.steps
        of_what = (
            "no steps are marked" if steps is None else f"{steps.count} steps of {steps.mean_seconds * 1e3:.3f} ms"
        )
        lines.append(f"{profile.target} {profile.rank}: {of_what}, {profile.overlap:.1%} of kernel time overlapped")
        for group, found in sorted(profile.groups.items(), key=lambda item: -item[1].share):
            per_step = "" if found.step_seconds is None else f"{found.step_seconds * 1e3:10.3f} ms"
            lines.append(f"  {group:<12}{found.share:7.1%}{per_step}")
        lines += [
            f"  {kernel.busy_share:7.1%} {kernel.group:<12}{printable(kernel.name)}" for kernel in profile.kernels
        ]
    write_out("\n".join(lines) + "\n")
