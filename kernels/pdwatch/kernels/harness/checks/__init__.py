"""The checks: each has a stable name, tells what it guards against, and says whether it can run here."""

from __future__ import annotations

from pdwatch.kernels.harness.checks import capture, invariance, limits, memory, numerics, streams, timing
from pdwatch.kernels.harness.checks.base import Check, CheckFailed, Subject

CHECKS: tuple[Check, ...] = (
    *numerics.CHECKS,
    *memory.CHECKS,
    *invariance.CHECKS,
    *limits.CHECKS,
    *capture.CHECKS,
    *streams.CHECKS,
    *timing.CHECKS,
)

__all__ = ["CHECKS", "Check", "CheckFailed", "Subject"]
