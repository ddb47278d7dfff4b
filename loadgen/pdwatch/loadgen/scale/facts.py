"""The client as a whole, out of what each of its workers noticed of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..validity import ClientFacts, ProcessUse, Validity, ValidityLimits, judge_validity

# beyond these the drivers do not load the server together, and windows do not mean the same time.
MOST_START_LAG_SECONDS: Final = 0.1
MOST_CLOCK_UNCERTAINTY_SECONDS: Final = 0.01

_SUMS: Final = (
    "intended_in_flight",
    "achieved_in_flight",
    "intended_rate_per_second",
    "achieved_rate_per_second",
    "recorder_backlog_most_requests",
    "recorder_backlog_most_bytes",
    "send_backlog_most_bytes",
    "requests_made_late",
    "most_in_flight",
    "bound_in_flight",
    "client_refusals",
    "back_off_seconds",
)
_WORST: Final = (
    "loop_lag_p50_seconds",
    "loop_lag_p99_seconds",
    "loop_lag_most_seconds",
    "schedule_lag_p99_seconds",
    "send_backlog_most_seconds",
)


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What one worker noticed in a phase. `start_lag_seconds` is how late it began, by the leader's clock."""

    index: int
    client: ClientFacts
    start_lag_seconds: float
    clock_uncertainty_seconds: float


def merged_facts(workers: Sequence[WorkerFacts]) -> ClientFacts:
    """The facts of all: sums of what adds up, the worst of what does not; processes by worker and name."""
    values: dict[str, float | int | None] = {}
    for names, merge in ((_SUMS, sum), (_WORST, max)):
        for name in names:
            found = [value for worker in workers if (value := getattr(worker.client, name)) is not None]
            values[name] = merge(found) if found else None
    processes = {f"{name} {worker.index}": use for worker in workers for name, use in worker.client.processes.items()}
    return ClientFacts.model_validate({**values, "processes": processes})


def with_process(client: ClientFacts, name: str, use: Mapping[str, float]) -> ClientFacts:
    """The facts with one more process."""
    return client.model_copy(update={"processes": {**client.processes, name: ProcessUse.model_validate(use)}})


def judge_workers(workers: Sequence[WorkerFacts], limits: ValidityLimits, lost: Iterable[str]) -> Validity:
    """Each worker held against the limits; `lost` says of each that died what is known."""
    reasons = list(lost)
    are_bound = not reasons
    for worker in workers:
        validity = judge_validity(worker.client, limits)
        found = []
        if worker.start_lag_seconds > MOST_START_LAG_SECONDS:
            found.append(f"it began {worker.start_lag_seconds * 1000:.0f} ms after the agreed time")
        if worker.clock_uncertainty_seconds > MOST_CLOCK_UNCERTAINTY_SECONDS:
            found.append(f"its clock is known to ±{worker.clock_uncertainty_seconds * 1000:.3g} ms only")
        are_bound = are_bound and not found and (validity.is_valid or validity.is_bound_reached)
        reasons += [f"worker {worker.index}: {reason}" for reason in (*validity.reasons, *found)]
    return Validity(is_valid=not reasons, reasons=tuple(reasons), is_bound_reached=bool(reasons) and are_bound)
