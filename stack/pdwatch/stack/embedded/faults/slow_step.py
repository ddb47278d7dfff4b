"""A decode step that takes 1.3 times as long."""

from __future__ import annotations

import time

from pdwatch.stack.embedded.faults.base import Fault


class SlowStep(Fault):
    """Busy-waits, because a slow kernel keeps the device busy too; answers stay right."""

    name = "slow_step"
    where = "decode worker, decode step"
    signature = "slow_decode"
    description = "every decode step of more than one request takes 1.3 times as long"

    added_share = 0.3

    def step_ended(self, batch: int, seconds: float) -> None:
        if batch < 2:
            return
        end = time.perf_counter() + self.added_share * seconds
        while time.perf_counter() < end:
            pass
