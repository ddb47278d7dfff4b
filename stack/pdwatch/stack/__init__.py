"""The deployment pdwatch brings up by itself: embedded workers, the real router, and what keeps them together."""

from __future__ import annotations

from pdwatch.stack.control import bring_up, read_state, take_down
from pdwatch.stack.deployment import Deployment, Endpoints, Progress
from pdwatch.stack.errors import (
    AlreadyRunning,
    NotReady,
    NotRunning,
    PortInUse,
    ProcessDied,
    SpecInvalid,
    StackError,
    StateUnreadable,
    SupervisorFailed,
)
from pdwatch.stack.health import is_healthy
from pdwatch.stack.processes import ProcessState, ProcessStatus
from pdwatch.stack.spec import DeploymentSpec
from pdwatch.stack.state import Phase, SupervisorState
from pdwatch.stack.workers import PLAIN_ENGINE, check_settings

__all__ = [
    "PLAIN_ENGINE",
    "AlreadyRunning",
    "Deployment",
    "DeploymentSpec",
    "Endpoints",
    "NotReady",
    "NotRunning",
    "Phase",
    "PortInUse",
    "ProcessDied",
    "ProcessState",
    "ProcessStatus",
    "Progress",
    "SpecInvalid",
    "StackError",
    "StateUnreadable",
    "SupervisorFailed",
    "SupervisorState",
    "bring_up",
    "check_settings",
    "is_healthy",
    "read_state",
    "take_down",
]
