"""A request made ready ahead of its time, so that sending it costs the sender nothing."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from .plan import Phase, Plan
from .request import Cancel, cancel_for, chat_body, chat_request
from .task import Task
from .transcript import Label
from .workload import make_task


@dataclass(frozen=True, slots=True)
class Facts:
    """What a request is, for its transcript."""

    request_id: str
    phase: Phase
    label: Label
    dialect: str
    target: str
    task: Task
    body: bytes


@dataclass(frozen=True, slots=True)
class Prepared:
    """The `sequence`-th request of a phase and label: its bytes on the wire, and its Facts as a pickle."""

    sequence: int
    message: bytes
    cancel: Cancel | None
    facts: bytes


def prepare(plan: Plan, phase: Phase, label: Label, sequence: int, bearer_token: str | None) -> Prepared:
    """Make one request; the same arguments give the same one."""
    number = plan.task_number(phase, label, sequence)
    target = plan.target(phase)
    task = make_task(plan.seed, number, plan.workload, phase.arm)
    request_id = f"{phase.arm}-{phase.index}-{label.value}-{sequence}"
    body = chat_body(task, plan)
    facts = Facts(request_id, phase, label, plan.dialect, target.url, task, body)
    return Prepared(
        sequence,
        chat_request(target, request_id, body, bearer_token),
        cancel_for(plan.seed, number, plan.cancel_rate),
        pickle.dumps(facts),
    )
