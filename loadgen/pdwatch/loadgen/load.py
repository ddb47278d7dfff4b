"""When a phase's requests are sent: what a plan says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def growing_seconds(self, level: int) -> float:
        """Time from the phase's start until the last of its users begins."""
        return 0.0

    def title(self, level: int) -> str:
        """What the load is, in a word or two, as users see it."""
        return f"{level} users"


class ClosedLoad(_Frozen):
    """The phase's users each send their next request when their last one has ended.

    Together: all connections are open before, and the first requests leave at once. Staggered: each user begins
    `stagger_seconds` after the one before.
    """

    kind: Literal["closed"] = "closed"
    start: Literal["together", "staggered"] = "together"
    stagger_seconds: float = Field(default=0.02, gt=0)

    def growing_seconds(self, level: int) -> float:
        """Time from the phase's start until the last of its users begins."""
        return (level - 1) * self.stagger_seconds if self.start == "staggered" else 0.0


class RampLoad(_Frozen):
    """A closed loop that begins with `from_users` and grows evenly to the phase's level in `over_seconds`."""

    kind: Literal["ramp"]
    from_users: int = Field(default=1, ge=1)
    over_seconds: float = Field(gt=0)

    def growing_seconds(self, level: int) -> float:
        """Time from the phase's start until the last of its users begins."""
        return self.over_seconds if level > self.from_users else 0.0


class OpenLoad(_Frozen):
    """Requests are sent at times of their own, whatever becomes of the earlier ones.

    The times are an absolute schedule: a late request makes none of the later ones later. `burstiness` is the shape of
    gamma gaps: 1 is Poisson, less is burstier. The phase's level bounds the requests in flight: further ones wait, and
    their wait shows in the latency from the scheduled time.
    """

    kind: Literal["open"]
    rate_per_second: float = Field(gt=0)
    arrivals: Literal["poisson", "constant", "gamma"] = "poisson"
    burstiness: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _only_gamma_is_bursty(self) -> Self:
        if self.burstiness != 1 and self.arrivals != "gamma":
            raise ValueError(f"burstiness is {self.burstiness:g} with {self.arrivals} arrivals; make them gamma")
        return self

    def title(self, level: int) -> str:
        """The rate."""
        return f"{self.rate_per_second:g}/s"


class WavesLoad(_Frozen):
    """Waves of requests released together, each when all of the one before have ended.

    The sizes follow one another, `repeats` times over; none is above the phase's level, which is how many users stand
    ready. The phase ends with them, whatever its window; in the warm-up they run as often as its time allows.
    """

    kind: Literal["waves"]
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    repeats: int = Field(default=1, ge=1)

    def title(self, level: int) -> str:
        """The largest wave."""
        return f"waves of up to {max(self.sizes)}"


class ReplayLoad(_Frozen):
    """Requests are sent at the times of a trace, `speed` times as fast; the phase ends with it, whatever its window.

    The phase's level is the most of them in flight: further ones wait, as in an open loop.
    """

    kind: Literal["replay"]
    path: Path
    speed: float = Field(default=1.0, gt=0)

    def title(self, level: int) -> str:
        """The trace's speed."""
        return f"replay at {self.speed:g}×"


Load = Annotated[ClosedLoad | RampLoad | OpenLoad | WavesLoad | ReplayLoad, Field(discriminator="kind")]
