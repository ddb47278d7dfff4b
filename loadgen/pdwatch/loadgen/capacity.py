"""The highest concurrency, or rate, at which enough requests keep to the SLO, found by trying loads.

Loads double from `start` until one misses, then the gap between the highest that meets and the lowest that misses is
halved (in ratio) until it is `precision` wide. A load meets when the lower bound of its share of good requests reaches
`target_share`, misses when the upper bound falls below it, and is looked at again, its requests added to the earlier
ones, up to `looks` times when neither holds. Bounds are those of `bounds.ShareEstimate`: requests that ran together
count for less than independent ones.

A look of a rate is long enough to show a queue that grows; one that does shows a rate above what is served, and the
rate misses whatever its first requests were like. Whether the requests outstanding rose in all looks at a rate together
is asked more strictly before it may meet: a rise that one in twenty steady queues shows is too much. A look that is
not steady never makes a load meet, and one that the client spoilt is done again, `looks` times at most.

The search picks its loads by what it has seen, so each decision is made at 1 − (1 − confidence) / decisions, with the
most decisions that the search can come to: then all of them hold together at `confidence` (Bonferroni), however they
were picked. That a higher load is not easier is assumed; where two decisions say otherwise, the statement says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .bounds import ShareEstimate, estimate_share

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


# a one-sided test at 5 %.
MOST_GROWTH_Z: Final = 1.645
_FEWEST_OF_A_RATE: Final = 40


class Search(BaseModel):
    """What to look for: the most `users`, or requests/s (`rate`), from `start` to at most `most`.

    Each look at a rate lasts `least_seconds` or longer. No look is begun after `most_seconds` (None: no limit).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["users", "rate"] = "users"
    start: Positive = 1.0
    most: Positive = 512.0
    target_share: float = Field(default=0.95, gt=0, lt=1)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    precision: float = Field(default=0.1, gt=0.005, le=1)
    looks: int = Field(default=4, ge=1, le=10)
    least_seconds: Positive = 60.0
    most_seconds: Positive | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.most < self.start:
            raise ValueError(f"search.most is {self.most:g}, below search.start = {self.start:g}; raise it")
        if self.kind == "users" and not (self.start.is_integer() and self.most.is_integer()):
            raise ValueError("search.start and search.most are numbers of users; give whole ones")
        return self

    @property
    def decisions(self) -> int:
        """The most decisions that the search can come to."""
        doublings = math.ceil(math.log2(self.most / self.start)) + 1
        halvings = math.ceil(math.log2(math.log(2) / math.log(1 + self.precision)))
        # the gap may have to be closed from both sides, where a load in it stays undecided.
        return self.looks * (doublings + 2 * max(0, halvings))

    @property
    def decision_confidence(self) -> float:
        """One-sided confidence of a single decision."""
        return 1 - (1 - self.confidence) / self.decisions

    def requests(self, load: float) -> int:
        """How many requests to measure at a load in one look: twice as many as prove the target when all are good and
        independent, and ten for each user, so that there are blocks of time to compare; of a rate as many as are due
        in `least_seconds`."""
        z = NormalDist().inv_cdf(self.decision_confidence)
        needed = 2 * z * z * self.target_share / (1 - self.target_share)
        least = 10 * load if self.kind == "users" else max(_FEWEST_OF_A_RATE, load * self.least_seconds)
        return math.ceil(max(needed, least))


class Decision(StrEnum):
    """What is known of a load."""

    MEETS = "meets"
    MISSES = "misses"
    CANNOT_TELL = "cannot_tell"


@dataclass(slots=True)
class Trial:
    """All looks at one load; `growth_z` has those that tell whether the requests outstanding rose, as normal deviates.

    The next look is 2^`doublings` times as long as the first. The client spoilt `spoilt` looks, which do not count.
    """

    load: float
    looks: int = 0
    doublings: int = 0
    spoilt: int = 0
    growth_z: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    in_flight: float = 0.0
    decision: Decision = Decision.CANNOT_TELL

    @property
    def estimate(self) -> ShareEstimate:
        """Share of good requests over all looks."""
        return estimate_share(self.margins, self.in_flight)

    @property
    def may_grow(self) -> bool:
        """Whether all looks together leave room for a queue that grows (Stouffer's sum of deviates)."""
        return math.fsum(self.growth_z) > MOST_GROWTH_Z * math.sqrt(len(self.growth_z))


class CapacitySearch:
    """Give what each load showed to `add`; `next_load` is the load to try, None at the end."""

    def __init__(self, config: Search) -> None:
        self.config = config
        self.trials: dict[float, Trial] = {}
        self._obstacle: str | None = None

    def next_load(self) -> float | None:
        """The load to look at next; None when nothing more can be learnt."""
        if self._obstacle is not None or self._contradiction() is not None:
            return None
        if not self.trials:
            return self._rounded(self.config.start)
        unclear = self._unclear()
        for load in unclear:
            if self.trials[load].looks < self.config.looks:
                return load
        meets, misses = self._highest_that_meets(), self._lowest_that_misses()
        if misses is None:
            top = max(self.trials)
            return None if top >= self.config.most else self._rounded(min(2 * top, self.config.most))
        # first the gap above what meets, then the gap below what misses.
        gaps = [(meets, min(unclear, default=misses)), (max(unclear, default=None), misses)]
        for low, high in gaps:
            if low is not None and (middle := self._middle(low, high)) is not None:
                return middle
        return None

    def requests(self, load: float) -> int:
        """How many requests to measure in the next look at a load, longer after one that was not steady."""
        trial = self.trials.get(load)
        return self.config.requests(load) << (0 if trial is None else trial.doublings)

    def add(self, load: float, margins: Sequence[float], in_flight: float, growth_z: float | None = None) -> Decision:
        """Take in one steady look at a load: the margin (see `Slo.margin`) of each request, in order of sending.

        `growth_z` is its Window's.
        """
        trial = self._looked(load, growth_z)
        trial.margins.extend(margins)
        trial.in_flight = max(trial.in_flight, in_flight)
        estimate, confidence = trial.estimate, self.config.decision_confidence
        if estimate.lower(confidence) >= self.config.target_share:
            if trial.may_grow:
                trial.doublings += 1
            else:
                trial.decision = Decision.MEETS
        elif estimate.upper(confidence) < self.config.target_share:
            trial.decision = Decision.MISSES
        return trial.decision

    def add_unsteady(self, load: float, growth_z: float | None = None) -> Decision:
        """Take in a look at a load from which nobody can tell: it uses up one of them."""
        trial = self._looked(load, growth_z)
        trial.doublings += 1
        return trial.decision

    def miss(self, load: float) -> Decision:
        """Take in a look at a load that a queue grew at, or that the bound in flight kept from being sent."""
        trial = self._looked(load, None)
        trial.decision = Decision.MISSES
        return trial.decision

    def spoil(self, load: float, reason: str) -> None:
        """Take in a look at a load at which the client was the limit: it is done again, or ends the search."""
        trial = self.trials.setdefault(load, Trial(load))
        trial.spoilt += 1
        if trial.spoilt >= self.config.looks:
            if not trial.looks:
                del self.trials[load]
            self.stop(load, reason if trial.spoilt == 1 else f"{reason} (in the last of {trial.spoilt} looks)")

    def _looked(self, load: float, growth_z: float | None) -> Trial:
        trial = self.trials.setdefault(load, Trial(load))
        trial.looks += 1
        if growth_z is not None:
            trial.growth_z.append(growth_z)
        return trial

    def stop(self, load: float, reason: str) -> None:
        """End the search before this load is decided: the client was the limit, or the time is over."""
        self._obstacle = f"the search ended at {self._shown(load)}: {reason}"

    def statement(self) -> str:
        """What was found, with its confidence, in one line."""
        found = self._found()
        return found if self._obstacle is None else f"{found}; {self._obstacle}"

    def _found(self) -> str:
        if (contradiction := self._contradiction()) is not None:
            return f"cannot tell: {contradiction}"
        meets, misses = self._highest_that_meets(), self._lowest_that_misses()
        if meets is None and misses is None:
            return "cannot tell: no load could be decided; measure more requests (more looks) at each"
        wanted = f"{100 * self.config.target_share:g} % of requests within the SLO"
        parts = [] if meets is None else [f"{self._shown(meets)} meets {wanted}"]
        if misses is not None:
            parts.append(f"{self._shown(misses)} {f'misses {wanted}' if meets is None else 'does not'}")
        if unclear := self._unclear():
            parts.append(f"cannot tell for {', '.join(map(self._shown, unclear))}")
        elif misses is None and self._obstacle is None:
            parts.append("higher was not tried")
        return f"{', '.join(parts)}, at {100 * self.config.confidence:g} % confidence"

    def _contradiction(self) -> str | None:
        meets, misses = self._highest_that_meets(), self._lowest_that_misses()
        if meets is None or misses is None or meets < misses:
            return None
        return f"{self._shown(meets)} meets the SLO while {self._shown(misses)} misses it"

    def _unclear(self) -> list[float]:
        """Loads without a decision of their own, and none that follows from another's."""
        low, high = self._highest_that_meets() or 0.0, self._lowest_that_misses() or math.inf
        return [load for load in self._loads(Decision.CANNOT_TELL) if low < load < high]

    def _middle(self, low: float, high: float) -> float | None:
        """The load between two, by ratio; None when they are as close as asked for."""
        if high / low <= 1 + self.config.precision:
            return None
        middle = self._rounded(math.sqrt(low * high))
        return middle if low < middle < high else None

    def _rounded(self, load: float) -> float:
        return float(round(load)) if self.config.kind == "users" else float(f"{load:.4g}")

    def _loads(self, decision: Decision) -> list[float]:
        return sorted(load for load, trial in self.trials.items() if trial.decision is decision)

    def _highest_that_meets(self) -> float | None:
        return max(self._loads(Decision.MEETS), default=None)

    def _lowest_that_misses(self) -> float | None:
        return min(self._loads(Decision.MISSES), default=None)

    def _shown(self, load: float) -> str:
        return f"{load:g} users" if self.config.kind == "users" else f"{load:g} requests/s"
