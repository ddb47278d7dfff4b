"""Where the time of a decode step goes: `pdwatch export profile`."""

from __future__ import annotations

from .capture import Capturer, CaptureSettings, Target
from .collector import ProfileSource
from .definitions import DEFINITIONS
from .history import DEFAULT_KEPT, HistoryFile
from .load import LoadGuard
from .profile import Profile, profile_trace
from .rules import GAPS, OTHER, KernelRules, read_rules
from .schedule import Schedule

__all__ = [
    "DEFAULT_KEPT",
    "DEFINITIONS",
    "GAPS",
    "OTHER",
    "CaptureSettings",
    "Capturer",
    "HistoryFile",
    "KernelRules",
    "LoadGuard",
    "Profile",
    "ProfileSource",
    "Schedule",
    "Target",
    "profile_trace",
    "read_rules",
]
