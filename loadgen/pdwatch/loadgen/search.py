"""The phases of a search for capacity, whoever runs them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .capacity import CapacitySearch
from .load import OpenLoad
from .plan import SEQUENCE_SPAN, Phase
from .steady import Window
from .validity import Validity


@dataclass(frozen=True, slots=True)
class Look:
    """A phase to run next, at `load`; `decide` takes in what came of it, before the next one is asked for."""

    phase: Phase
    load: float
    search: CapacitySearch

    def decide(
        self, window: Window, margins: Sequence[float], in_flight: float | None, validity: Validity
    ) -> str | None:
        """What is known of the load now; None where the client spoilt the look."""
        # a queue that only grows is a miss, wherever it stands: at the server, or here for the bound in flight.
        if validity.is_bound_reached or (validity.is_valid and window.is_growing):
            return self.search.miss(self.load).value
        if not validity.is_valid:
            self.search.spoil(self.load, f"the client was the limit: {validity.reasons[0]}")
            return None
        if not window.is_steady:
            return self.search.add_unsteady(self.load, window.growth_z).value
        return self.search.add(self.load, margins, in_flight or self.load, window.growth_z).value


def looks(search: CapacitySearch, template: Phase) -> Iterator[Look]:
    """The phases one after another, each chosen by what the ones before showed."""
    began_seconds, most_seconds = time.monotonic(), search.config.most_seconds
    index = 0
    while (load := search.next_load()) is not None:
        if most_seconds is not None and time.monotonic() - began_seconds >= most_seconds:
            search.stop(load, f"the time allowed is over ({most_seconds / 60:g} minutes)")
            return
        wanted: dict[str, object] = {"index": index, "requests": min(search.requests(load), SEQUENCE_SPAN)}
        if isinstance(template.load, OpenLoad):
            wanted["load"] = template.load.model_copy(update={"rate_per_second": load})
        else:
            wanted["level"] = int(load)
        yield Look(template.model_copy(update=wanted), load, search)
        index += 1
