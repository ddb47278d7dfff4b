"""Counters of 32 bits made into counters that only grow.

The PCIe byte counters of an H200 (driver 580) start again at 4 GiB, which a busy link fills in a tenth of a second:
between two scrapes they may have done so many times. GPM measures the same traffic as a rate over the same time, and
tells how many times: exactly while GPM is off by less than 2 GiB, as exactly as GPM beyond. Without it the fewest
possible times are assumed.
"""

from __future__ import annotations

from typing import Final

_SPAN: Final = float(1 << 32)


class WrappingCounter:
    """The total of one counter. It begins with the first reading, as a driver's own does with the driver."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._total = 0.0

    def advance(self, reading: float, seconds: float, rate: float | None) -> float:
        """The total after `reading` at time `seconds`; `rate` is what GPM measured up to now, per second."""
        if self._last is None:
            self._total = reading
        else:
            last_seconds, last = self._last
            gained = reading - last
            if gained < 0 or reading < _SPAN:
                gained %= _SPAN
                if rate is not None:
                    gained += max(0, round((rate * (seconds - last_seconds) - gained) / _SPAN)) * _SPAN
            self._total += gained
        self._last = (seconds, reading)
        return self._total
