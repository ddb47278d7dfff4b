"""The process that makes requests ready: takes a Plan, then Orders, and answers each with Batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .pipe import serve
from .plan import Plan
from .prepared import Prepared, prepare
from .transcript import Label

_BATCH: Final = 16


@dataclass(frozen=True, slots=True)
class Order:
    """Requests `first_sequence` and the `count` − 1 after it, of one phase and label."""

    phase_index: int
    label: Label
    first_sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive requests of one phase and label."""

    phase_index: int
    label: Label
    requests: tuple[Prepared, ...]


class Feeding:
    """Answers the parent's messages."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._bearer_token: str | None = None

    def handle(self, message: Any) -> Iterator[Batch]:
        """Take the plan, or make the requests of an order."""
        if isinstance(message, Plan):
            self._plan, self._bearer_token = message, message.bearer_token()
        elif self._plan is not None:
            yield from self._batches(self._plan, message)

    def _batches(self, plan: Plan, order: Order) -> Iterator[Batch]:
        phase = plan.phases[order.phase_index]
        end = order.first_sequence + order.count
        for start in range(order.first_sequence, end, _BATCH):
            requests = tuple(
                prepare(plan, phase, order.label, sequence, self._bearer_token)
                for sequence in range(start, min(start + _BATCH, end))
            )
            yield Batch(phase.index, order.label, requests)


def main(arguments: Sequence[str]) -> int:
    """Make requests until the parent needs no more; the exit status."""
    del arguments
    return serve(Feeding().handle)
