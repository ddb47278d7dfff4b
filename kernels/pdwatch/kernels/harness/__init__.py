"""The kernel harness: what every kernel must pass before it is served, and how to put one of your own under it."""

from __future__ import annotations

from pdwatch.kernels.harness.custom import custom
from pdwatch.kernels.harness.kernel import (
    ALL_PROMISES,
    Buffers,
    Case,
    Expected,
    Family,
    KernelUnderTest,
    Kind,
    Promise,
    Tolerance,
)
from pdwatch.kernels.harness.outcome import CheckResult, Outcome, Report
from pdwatch.kernels.harness.registry import Catalogue, Entry, UnknownKernel, catalogue
from pdwatch.kernels.harness.report import write_reports
from pdwatch.kernels.harness.run import UnknownName, run_checks

__all__ = [
    "ALL_PROMISES",
    "Buffers",
    "Case",
    "Catalogue",
    "CheckResult",
    "Entry",
    "Expected",
    "Family",
    "KernelUnderTest",
    "Kind",
    "Outcome",
    "Promise",
    "Report",
    "Tolerance",
    "UnknownKernel",
    "UnknownName",
    "catalogue",
    "custom",
    "run_checks",
    "write_reports",
]
