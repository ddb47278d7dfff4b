"""Errors of the gate. Each message is one line that names the value and the remedy."""

from __future__ import annotations


class GateError(Exception):
    """The gate could not do what it was asked; `pdwatch` prints the message and exits 3."""


class PolicyError(GateError):
    """A policy key or value cannot be used."""


class RunFolderError(GateError):
    """A run folder cannot be created or read."""


class TargetError(GateError):
    """A target did not answer, or answered with something that is not a model server."""


class NoModelList(TargetError):
    """A target answered, but with no list of models."""


class OptionError(GateError):
    """An option of a command cannot be used as given."""


class LoadFailed(GateError):
    """The load generator ended before all its phases had run."""


class Interrupted(GateError):
    """The run was stopped by a signal; what was recorded until then stays readable."""
