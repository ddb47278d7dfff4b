"""What a request must keep to, to count as good."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .errors import PlanError
from .transcript import Outcome

Limit = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|m)?")
_UNIT_SECONDS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, None: 1.0}


class Timed(Protocol):
    """What a limit is held against; a RequestRow is one."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def time_to_first_token_seconds(self) -> float | None: ...
    @property
    def scheduled_time_to_first_token_seconds(self) -> float | None: ...
    @property
    def time_per_output_token_seconds(self) -> float | None: ...
    @property
    def end_to_end_seconds(self) -> float | None: ...
    @property
    def scheduled_end_to_end_seconds(self) -> float | None: ...
    @property
    def longest_inter_chunk_seconds(self) -> float | None: ...


class Slo(BaseModel):
    """Limits of one request, in seconds; None limits nothing.

    `ttft_seconds` and `e2e_seconds` count from the scheduled time where there is a schedule, for a user waits from
    then on. `stall_seconds` limits the longest gap between two chunks of the answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttft_seconds: Limit = None
    tpot_seconds: Limit = None
    e2e_seconds: Limit = None
    stall_seconds: Limit = None

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not any(limit is not None for _, limit in self.limits()):
            raise ValueError("an SLO without a limit; give at least one of ttft, tpot, e2e, stall")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """The SLO of `ttft=1s,tpot=50ms`. Raises PlanError."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            key = f"{name.lower()}_seconds"
            duration = _DURATION.fullmatch(value)
            if key not in cls.model_fields or not equals:
                raise PlanError(f"SLO {part.strip()!r} is no limit; write it as ttft=1s,tpot=50ms (also e2e, stall)")
            if duration is None or not float(duration[1]):
                raise PlanError(f"SLO {part.strip()!r} has no duration above 0; write it as 50ms or 1.5s")
            if key in limits:
                raise PlanError(f"SLO {text!r} limits {name} twice; give it once")
            limits[key] = float(duration[1]) * _UNIT_SECONDS[duration[2]]
        return cls(**limits)

    def limits(self) -> Iterator[tuple[str, float | None]]:
        """Each limit's name without its unit, and its seconds."""
        for name in type(self).model_fields:
            yield name.removesuffix("_seconds"), getattr(self, name)

    def is_met(self, row: Timed) -> bool:
        """Whether a request was good: it is complete and keeps to every limit. What nobody can tell is not kept to."""
        return self.margin(row) <= 1

    def margin(self, row: Timed) -> float:
        """How much of its limits a request took: the largest ratio of a value to its limit, at most 1 when it was good.

        Infinite for one that is not complete, or where nobody can tell.
        """
        if row.outcome is not Outcome.COMPLETE:
            return math.inf
        return max((ratio for _, ratio in self._ratios(row)), default=0.0)

    def broken(self, row: Timed) -> Iterator[str]:
        """Names of the limits that a complete request does not keep to."""
        return (name for name, ratio in self._ratios(row) if ratio > 1)

    def _ratios(self, row: Timed) -> Iterator[tuple[str, float]]:
        for name, limit in self.limits():
            if limit is None:
                continue
            value = _VALUES[name](row)
            if value is not None:
                yield name, value / limit
            # an answer of one token has no TPOT and one of one chunk no stall: neither can be too slow.
            elif not _has_none(name, row):
                yield name, math.inf

    def __str__(self) -> str:
        return ", ".join(f"{name} ≤ {_duration(limit)}" for name, limit in self.limits() if limit is not None)


def _has_none(name: str, row: Timed) -> bool:
    return name == "stall" or (name == "tpot" and row.output_tokens is not None and row.output_tokens < 2)


def _ttft(row: Timed) -> float | None:
    scheduled = row.scheduled_time_to_first_token_seconds
    return row.time_to_first_token_seconds if scheduled is None else scheduled


def _e2e(row: Timed) -> float | None:
    scheduled = row.scheduled_end_to_end_seconds
    return row.end_to_end_seconds if scheduled is None else scheduled


def _tpot(row: Timed) -> float | None:
    return row.time_per_output_token_seconds


def _stall(row: Timed) -> float | None:
    return row.longest_inter_chunk_seconds


_VALUES: Final = {"ttft": _ttft, "tpot": _tpot, "e2e": _e2e, "stall": _stall}


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
