"""Failures come in waves: one bad step hits every request of its batch, so failures are not independent trials."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pdwatch.correctness.outcome import Judgement


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that were open at the same time, each overlapping another; times are monotonic seconds."""

    started_seconds: float
    ended_seconds: float
    request_ids: tuple[str, ...]


def merge_bursts(judgements: Iterable[Judgement]) -> tuple[Burst, ...]:
    """Merge requests that overlap in time into bursts, earliest first.

    A request whose end was not seen is open for ever. Touching ends do not overlap: in a closed loop each request
    starts when another ended.
    """
    bursts: list[Burst] = []
    for judgement in sorted(judgements, key=lambda entry: entry.sent_seconds):
        ended = math.inf if judgement.ended_seconds is None else judgement.ended_seconds
        last = bursts[-1] if bursts else None
        if last is not None and judgement.sent_seconds < last.ended_seconds:
            members = (*last.request_ids, judgement.request_id)
            bursts[-1] = Burst(last.started_seconds, max(last.ended_seconds, ended), members)
        else:
            bursts.append(Burst(judgement.sent_seconds, ended, (judgement.request_id,)))
    return tuple(bursts)
