"""The load generator's plan from the policy: per level, baseline half, candidate, baseline half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from pdwatch.gate.atomic import write_bytes_atomically
from pdwatch.gate.errors import PolicyError
from pdwatch.gate.names import BASELINE, CANDIDATE
from pdwatch.gate.policy import GatePolicy, LoadPolicy
from pdwatch.loadgen import Phase, Plan, ValidityLimits, WorkloadConfig


def make_plan(policy: GatePolicy, urls: Mapping[str, str], model: str) -> Plan:
    """The plan for the given arms. The baseline's window is halved around the candidate's, so drift cancels.

    Raises PolicyError when the workload table does not fit.
    """
    load = policy.load
    return Plan(
        seed=load.seed,
        dialect=load.dialect,
        targets=dict(urls),
        model=model,
        workload=workload(load),
        phases=tuple(_phases(load, BASELINE in urls)),
        cancel_rate=load.cancel_rate,
        request_timeout_seconds=load.request_timeout_seconds,
        limits=ValidityLimits(most_loop_lag_p99_seconds=policy.validity.max_loop_lag_seconds),
        bearer_token_environment=policy.targets.bearer_token_environment,
    )


def workload(load: LoadPolicy) -> WorkloadConfig:
    """The workload of `load.workload`. Raises PolicyError, one line, for a key or value it does not take."""
    try:
        return WorkloadConfig.model_validate(load.workload)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(["load", "workload", *(str(part) for part in first["loc"])])
        if first["type"] == "extra_forbidden":
            known = ", ".join(f"`{name}`" for name in WorkloadConfig.model_fields)
            raise PolicyError(f"unknown policy key `{key}`: known ones are {known}") from error
        raise PolicyError(f"policy key `{key}` cannot be `{first['input']}`: {first['msg']}") from error


def save_plan(path: Path, plan: Plan) -> None:
    """Write the plan where the load generator reads it."""
    write_bytes_atomically(path, plan.model_dump_json(indent=2).encode() + b"\n")


def planned_seconds(plan: Plan) -> float:
    """Warm-ups and windows together; cool-downs come on top."""
    return sum(phase.warmup_seconds + phase.window_seconds for phase in plan.phases)


def _phases(load: LoadPolicy, has_baseline: bool) -> Iterator[Phase]:
    index = 0
    for level in load.levels:
        halves = [(CANDIDATE, 1.0)]
        if has_baseline:
            halves = [(BASELINE, 0.5), *halves, (BASELINE, 0.5)]
        for arm, share in halves:
            yield Phase(
                index=index,
                arm=arm,
                level=level,
                warmup_seconds=load.warmup_seconds,
                window_seconds=load.window_seconds * share,
            )
            index += 1
