"""What the driver and its clerk tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .exchange import Exchange
from .plan import Phase
from .prepared import Prepared
from .transcript import Label, Outcome


@dataclass(frozen=True, slots=True)
class Opening:
    """To the clerk, first: where the journal and the rows go."""

    directory: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """To the clerk: a phase begins, `pair` earlier ones having its arm and level; its predecessor is forgotten."""

    phase: Phase
    pair: int


@dataclass(frozen=True, slots=True)
class Order:
    """To the clerk: make these requests of the phase."""

    label: Label
    sequences: range


@dataclass(frozen=True, slots=True)
class Ended:
    """To the clerk: a request has ended; the label is of the time at which it was sent."""

    request_id: str
    label: Label
    user: int
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Asking:
    """To the clerk: tell the phase's figures as they are by now."""

    now_seconds: float
    in_flight: int
    users: int
    loop_lag_seconds: float


@dataclass(frozen=True, slots=True)
class Closing:
    """To the clerk: all requests of the phase have been told of; its measured part began and ended at these times.

    `users` are this driver's, `unsent` how many requests fell due meanwhile and were never sent.
    """

    starts_seconds: float
    ends_seconds: float
    users: int
    unsent: int


@dataclass(frozen=True, slots=True)
class Opened:
    """From the clerk: the answer to Opening, once everything is there that it writes to or listens on."""


@dataclass(frozen=True, slots=True)
class Batch:
    """From the clerk: requests that were ordered."""

    phase_index: int
    label: Label
    requests: tuple[Prepared, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """From the clerk: a request stands in the journal; `next` goes on with its conversation."""

    request_id: str
    phase_index: int
    label: Label
    outcome: Outcome
    next: Prepared | None


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """From the clerk: the answer to Asking."""

    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """From the clerk: the answer to Closing, as JSON values.

    `margins` say in a search how much of its limits each measured request took, in the order of their sending.
    """

    phase_index: int
    window: Mapping[str, Any]
    summary: Mapping[str, Any]
    margins: tuple[float, ...] | None
