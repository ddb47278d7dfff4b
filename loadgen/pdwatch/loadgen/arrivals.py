"""When the requests of an open loop are to be sent: an absolute schedule, made from a seed and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, count, repeat
from random import Random
from typing import Final

from .load import OpenLoad

_POISSON_SHAPE: Final = 1.0


def arrival_offsets(load: OpenLoad, seed: int) -> Iterator[float]:
    """Seconds after the start of the phase at which each request is due, without end and never falling.

    The mean gap is exactly 1 / rate: of constant arrivals every gap (request n is due at n / rate), of Poisson ones the
    expectation, of gamma ones too, whose gaps scatter by 1/√burstiness of their mean. How many fall into a window
    scatters accordingly, so hold what was sent against this schedule and not against the rate.
    """
    rate = load.rate_per_second
    if load.arrivals == "constant":
        return (number / rate for number in count())
    shape = load.burstiness if load.arrivals == "gamma" else _POISSON_SHAPE
    source = Random(f"{seed}/arrivals/{load.arrivals}/{rate!r}/{shape!r}")
    return accumulate(source.gammavariate(shape, 1 / (rate * shape)) for _ in repeat(None))
