"""Real bugs that can be switched on, one module each; the registry finds them by their file."""

from __future__ import annotations

from pdwatch.stack.embedded.faults.base import Fault
from pdwatch.stack.embedded.faults.registry import FaultInfo, catalogue, load

__all__ = ["Fault", "FaultInfo", "catalogue", "load"]
