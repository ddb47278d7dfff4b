"""What a load run found, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from pdwatch.loadgen import ClientFacts, PhaseSummary, Validity

SCHEMA = "pdwatch.load/1"


class SloResult(StrEnum):
    """Whether enough requests kept to the SLO; UNCLEAR when the bounds of their share hold the wanted one between
    them."""

    MET = "met"
    MISSED = "missed"
    UNCLEAR = "unclear"


class Record(BaseModel):
    """Base of what `load.json` holds."""

    model_config = ConfigDict(frozen=True)


class LevelResult(Record):
    """One phase: what was asked for, in words and numbers, and what came of it.

    `decision` is the search's after `look` looks at this load, both None without a search.
    """

    name: str
    load: str
    level: int
    rate_per_second: float | None = None
    summary: PhaseSummary
    client: ClientFacts
    validity: Validity
    decision: str | None = None
    look: int | None = None
    slo: SloResult | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no request was answered, so that nothing was measured."""
        return not self.summary.complete

    @property
    def is_judged(self) -> bool:
        """Whether what was measured is the server's: also where requests waited because it was too slow for a rate."""
        return self.validity.is_valid or self.validity.is_bound_reached

    @property
    def is_as_asked(self) -> bool:
        """Whether the level was the load asked for; a search is free to ask for more than a server can do."""
        return self.validity.is_valid or (self.is_judged and self.decision is not None)


class LoadResult(Record):
    """What `load.json` holds. `failure` says why the run ended early; None when it did not."""

    schema_name: str = SCHEMA
    url: str
    model: str
    dialect: str
    dialect_reason: str
    seed: int
    command: tuple[str, ...]
    started_utc: str
    versions: Mapping[str, str]
    host: Mapping[str, Any]
    plan: Mapping[str, Any]
    levels: tuple[LevelResult, ...]
    slo_share: float | None = None
    capacity: str | None = None
    failure: str | None = None

    def exit_code(self, *, checks_slo: bool) -> int:
        """The exit code; what the SLO says counts only when it is checked, and of a search the last look at each load.

        0 measured; 1 SLO missed by the server; 2 a level INVALID, without an answer, or its SLO unclear; 3 nothing
        was measured, or the run ended early.
        """
        levels = last_looks(self.levels)
        judged = [level for level in levels if level.is_judged and not level.is_empty]
        valid = [level for level in judged if level.is_as_asked]
        if self.failure is not None or all(level.is_empty for level in levels):
            return 3
        if checks_slo and any(level.slo is SloResult.MISSED for level in judged):
            return 1
        is_unclear = checks_slo and any(level.slo is SloResult.UNCLEAR for level in valid)
        return 2 if is_unclear or len(valid) < len(levels) else 0


def last_looks(levels: Sequence[LevelResult]) -> list[LevelResult]:
    """The levels, of a search the last look at each load only, in order of load: its decision is of all looks."""
    if not any(level.look is not None for level in levels):
        return list(levels)
    last = {level.name: level for level in levels}
    return sorted(last.values(), key=lambda level: level.rate_per_second or level.level)


def level_result(
    name: str, event: Mapping[str, Any], rate: float | None, slo_share: float, look: int | None = None
) -> LevelResult:
    """The result of a phase from its `phase_end` event."""
    summary = PhaseSummary.model_validate(event["summary"])
    return LevelResult(
        name=name,
        load=event["load"],
        level=event["level"],
        rate_per_second=rate,
        summary=summary,
        client=ClientFacts.model_validate(event["client"]),
        validity=Validity.model_validate(event["validity"]),
        decision=event.get("decision"),
        look=look,
        slo=_slo_result(summary, slo_share),
    )


def _slo_result(summary: PhaseSummary, slo_share: float) -> SloResult | None:
    goodput = summary.goodput
    if goodput is None:
        return None
    if goodput.lower >= slo_share:
        return SloResult.MET
    return SloResult.MISSED if goodput.upper < slo_share else SloResult.UNCLEAR
