"""The load generator's plan from the options of `pdwatch load`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pdwatch.gate.errors import OptionError
from pdwatch.gate.load.options import DEFAULT_LEVELS, LoadOptions, numbers
from pdwatch.gate.load.probe import Server
from pdwatch.gate.load.source import read_source
from pdwatch.gate.names import CANDIDATE, EMBEDDED_MODEL
from pdwatch.loadgen import Plan, Slo, ValidityLimits, read_trace

WORKLOADS = "text, tool_calls, openai:FILE, sharegpt:FILE, bfcl or mooncake:FILE"
_FILED = {"openai": "openai_requests", "sharegpt": "sharegpt", "mooncake": "mooncake"}


def make_load_plan(options: LoadOptions, server: Server) -> Plan:
    """The plan of a run against a server that has been asked who it is. Raises OptionError and PlanError."""
    phases = list(_phases(options))
    document: dict[str, Any] = {
        "seed": options.seed,
        "dialect": server.dialect,
        "targets": {CANDIDATE: options.url},
        "model": server.model,
        **(_requests(options, server.model) if options.source is None else read_source(options.source)),
        "phases": [{"index": index, "arm": CANDIDATE, **phase} for index, phase in enumerate(phases)],
        "cancel_rate": options.cancel_rate,
        "request_timeout_seconds": options.timeout,
        "bearer_token_environment": options.bearer_token_environment,
        "ca_file": None if options.ca_file is None else options.ca_file.absolute(),
        "is_verified": not options.insecure,
        "slo": None if options.slo is None else Slo.parse(options.slo),
        "search": _search(options) if options.find_capacity else None,
        "limits": _limits(options.max_loop_lag),
        "metrics_port": options.metrics_port,
        **({"promises_usage": False} if options.has_no_usage else {}),
    }
    try:
        return Plan.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        value = f" is {first['input']!r:.80}:" if place and first["type"] != "value_error" else ""
        raise OptionError(f"the load cannot be run as asked: {place}{value} {message}".replace(":  ", ": ")) from error


def _phases(options: LoadOptions) -> Iterator[dict[str, Any]]:
    common = {
        "warmup_seconds": options.warmup,
        "window_seconds": options.duration,
        "requests": options.requests,
    }
    if options.replay is not None:
        load = {"kind": "replay", "path": options.replay.absolute(), "speed": options.speed}
        yield {**common, "warmup_seconds": 0.0, "level": options.most_in_flight, "load": load}
    elif options.waves is not None:
        sizes = numbers("--waves", options.waves, int, 1, "--waves 16,17,32")
        load = {"kind": "waves", "sizes": sizes, "repeats": options.repeats}
        yield {**common, "level": max(sizes), "load": load}
    elif options.rate is not None:
        rates = numbers("--rate", options.rate, float, 0.0, "--rate 5 or --rate 1,2,4")
        for rate in rates:
            load = {
                "kind": "open",
                "rate_per_second": rate,
                "arrivals": options.arrivals,
                "burstiness": options.burstiness,
            }
            yield {**common, "level": options.most_in_flight, "load": load}
    else:
        for level in _levels(options):
            yield {**common, "level": level, "load": _closed(options)}


def _levels(options: LoadOptions) -> list[int]:
    default = "1" if options.find_capacity else DEFAULT_LEVELS
    levels = numbers("--levels", options.levels or default, int, 1, "--levels 1,16,64")
    if len(set(levels)) != len(levels):
        raise OptionError(f"--levels `{options.levels}` names a level twice: name each once")
    return levels


def _closed(options: LoadOptions) -> dict[str, Any]:
    if options.ramp is not None:
        return {"kind": "ramp", "over_seconds": options.ramp}
    if options.stagger is not None:
        return {"kind": "closed", "start": "staggered", "stagger_seconds": options.stagger}
    return {"kind": "closed"}


def _search(options: LoadOptions) -> dict[str, Any]:
    if options.rate is not None:
        start: float = numbers("--rate", options.rate, float, 0.0, "--rate 1")[0]
    else:
        start = _levels(options)[0]
    kind = "users" if options.rate is None else "rate"
    budget = {} if options.most_minutes is None else {"most_seconds": 60 * options.most_minutes}
    return {"kind": kind, "start": start, "most": options.most, "target_share": options.slo_share, **budget}


def _limits(most_loop_lag_p99_seconds: float | None) -> ValidityLimits:
    limits = ValidityLimits()
    if most_loop_lag_p99_seconds is None:
        return limits
    most = max(most_loop_lag_p99_seconds, limits.most_loop_lag_seconds)
    return ValidityLimits(most_loop_lag_p99_seconds=most_loop_lag_p99_seconds, most_loop_lag_seconds=most)


def _requests(options: LoadOptions, model: str) -> dict[str, Any]:
    return {"source": _source(options, model)}


def _source(options: LoadOptions, model: str) -> dict[str, Any]:
    """The plan's source: what `--workload` names, else what the trace holds, else text."""
    limits = {} if options.max_tokens is None else {"max_tokens": options.max_tokens}
    name, _, file = (options.workload or _default_workload(options, model)).partition(":")
    if options.prompt_words is not None and name != "text":
        raise OptionError(f"--prompt-words is for --workload text, not `{name}`: leave it out")
    if options.ignore_eos and name not in ("text", "mooncake"):
        raise OptionError(f"--ignore-eos is for --workload text and mooncake, not `{name}`: leave it out")
    if name == "text":
        return {"kind": "text", **limits, **_words(options), **_exact(options)}
    if name == "tool_calls":
        # the embedded model knows its task; others are told how to answer.
        return {"kind": "tool_calls", "has_rules": model != EMBEDDED_MODEL, **limits}
    if name == "bfcl":
        return {"kind": "bfcl", **limits, **({"slices": file.split(",")} if file else {})}
    if name not in _FILED or not file:
        raise OptionError(f"--workload `{options.workload}` is none: use {WORKLOADS}")
    path = Path(file).absolute()
    if not path.is_file():
        raise OptionError(f"--workload file `{file}` is not there: give the path of a file")
    order = {"order": "file"} if options.replay is not None and name != "mooncake" else {}
    exact = {"ignore_eos": True} if options.ignore_eos else {}
    return {"kind": _FILED[name], "path": path, **limits, **order, **exact}


def _default_workload(options: LoadOptions, model: str) -> str:
    if options.replay is not None:
        has_bodies = next(read_trace(options.replay)).body is not None
        return f"{'openai' if has_bodies else 'mooncake'}:{options.replay}"
    return "tool_calls" if model == EMBEDDED_MODEL else "text"


def _words(options: LoadOptions) -> dict[str, int]:
    if options.prompt_words is None:
        return {}
    fewest, dash, most = options.prompt_words.partition("-")
    if not fewest.isdecimal() or (dash and not most.isdecimal()):
        raise OptionError(f"--prompt-words `{options.prompt_words}` is no size: write it as 200 or 100-400")
    return {"fewest_words": int(fewest), "most_words": int(most if dash else fewest)}


def _exact(options: LoadOptions) -> dict[str, Any]:
    if not options.ignore_eos:
        return {}
    tokens = options.max_tokens or 128
    return {"ignore_eos": True, "max_tokens": tokens, "min_tokens": tokens}
