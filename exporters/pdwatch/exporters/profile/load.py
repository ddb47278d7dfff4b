"""How many requests a worker runs now, from its /metrics.

A profile slows a busy worker down and says nothing of an idle one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ..errors import CaptureRefused

# the colon becomes an underscore where an exposition was escaped on its way
_RUNNING: Final = frozenset({"sglang:num_running_reqs", "sglang_num_running_reqs"})


@dataclass(frozen=True, slots=True)
class LoadGuard:
    """The numbers of running requests at which a profile may be taken."""

    fewest_running: int = 1
    most_running: int = 64

    def check(self, target: str, exposition: str) -> int:
        """The running requests. Raises CaptureRefused when there are too few or too many, or none can be told."""
        running = running_requests(exposition)
        if running is None:
            # a decode worker shows no such series before its first statistics
            raise CaptureRefused("load_unknown", f"{target} does not tell its running requests: no profile is taken")
        if running < self.fewest_running:
            raise CaptureRefused("too_idle", f"{target} runs {running} requests, fewer than {self.fewest_running}")
        if running > self.most_running:
            raise CaptureRefused("too_busy", f"{target} runs {running} requests, more than {self.most_running}")
        return running


def running_requests(exposition: str) -> int | None:
    """Running requests of a worker, from its exposition; None if it does not tell.

    Ranks of tensor parallelism run the same requests and count once, ranks of data parallelism different ones.
    """
    by_replica: dict[str, float] = {}
    for sample in _samples(exposition):
        if sample.name in _RUNNING and math.isfinite(sample.value):
            replica = sample.labels.get("dp_rank", "")
            by_replica[replica] = max(sample.value, by_replica.get(replica, 0.0))
    return round(sum(by_replica.values())) if by_replica else None


def _samples(exposition: str) -> Iterator[Sample]:
    # the rest of the exposition is nobody's business here, and may be thousands of lines
    lines = "".join(f"{line}\n" for line in exposition.splitlines() if line.startswith(tuple(_RUNNING)))
    try:
        for family in text_string_to_metric_families(lines):
            yield from family.samples
    except ValueError:
        return
