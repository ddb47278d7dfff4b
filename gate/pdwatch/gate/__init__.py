"""The gate: policies, runs, verdicts and reports, behind the command `pdwatch`."""

from __future__ import annotations

from pdwatch.gate.errors import GateError

__all__ = ["GateError"]
