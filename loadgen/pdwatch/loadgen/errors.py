"""What goes wrong in the load generator.

LoadgenError
├── PlanError           the plan or its workload cannot be run as written
├── TargetUnreachable   nobody answers at a target's address
└── JournalCorrupt      a transcript journal holds bytes that no writer of ours left

Each message is one line that names the value and the remedy.
"""

from __future__ import annotations


class LoadgenError(Exception):
    """Any error of the load generator."""


class PlanError(LoadgenError):
    """The plan cannot be run as written."""


class TargetUnreachable(LoadgenError):
    """A target gave no HTTP answer before the load began."""


class JournalCorrupt(LoadgenError):
    """A transcript journal is damaged before its last record."""
