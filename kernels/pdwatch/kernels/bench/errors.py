"""Why something was not measured."""

from __future__ import annotations


class BenchUnavailable(RuntimeError):
    """Nothing can be measured here; the message names the remedy."""


class BenchArguments(ValueError):
    """What was asked for names nothing that is measured; the message names what is."""


class Unsuitable(Exception):
    """An implementation does not take a case; the message says why."""
