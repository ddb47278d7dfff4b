"""What a run does: which targets, which tasks, which phases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .capacity import Search
from .errors import PlanError
from .load import ClosedLoad, Load, OpenLoad, ReplayLoad, WavesLoad
from .slo import Slo
from .sources.config import SourceConfig, ToolCallsSource
from .target import Target
from .transcript import Label
from .validity import ValidityLimits
from .workload import WorkloadConfig

Dialect = Literal["sglang", "openai"]

LONGEST_REQUEST_ID_ARM: Final = 32

# task numbers read as LEVEL PAIR LABEL SEQUENCE in decimal: 16 000 0 000123 is the 124th measured request of level 16.
SEQUENCE_SPAN: Final = 1_000_000
_LABEL_SPAN: Final = 10
_PAIR_SPAN: Final = 1000
_LABEL_DIGIT: Final = {Label.MEASURED: 0, Label.WARMUP: 1, Label.COOLDOWN: 2}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Phase(_Frozen):
    """One load against one arm's target: a warm-up that does not count, then the measured part.

    `level` is the most requests in flight: the users of a closed loop. The measured part ends after `window_seconds`,
    or with `requests` when so many measured requests have been sent; the load goes on until they have all ended, except
    after `requests`, where nothing further is sent. Waves and replays end by themselves.

    The warm-up lasts `warmup_seconds`, and at least until a ramp or a staggered start has brought in its last user.
    """

    index: int = Field(ge=0)
    arm: str = Field(pattern=rf"^[a-z][a-z0-9_-]{{0,{LONGEST_REQUEST_ID_ARM - 1}}}$")
    level: int = Field(ge=1, le=100_000)
    warmup_seconds: float = Field(default=2.0, ge=0)
    window_seconds: float = Field(default=10.0, gt=0)
    requests: int | None = Field(default=None, ge=1, le=SEQUENCE_SPAN)
    load: Load = ClosedLoad()

    @property
    def lead_seconds(self) -> float:
        """Time from the start to the measured part."""
        return max(self.warmup_seconds, self.load.growing_seconds(self.level))

    @model_validator(mode="after")
    def _waves_fit(self) -> Self:
        if isinstance(self.load, WavesLoad) and max(self.load.sizes) > self.level:
            raise ValueError(f"load.sizes has a wave of {max(self.load.sizes)}; give a level that is not below it")
        return self


class Plan(_Frozen):
    """A whole run. `targets` maps each arm to a base URL; `phases` run in order.

    `cancel_rate` is the share of requests that the client gives up on, early in the answer or before it.
    `request_timeout_seconds` bounds one request from its sending to its last byte. `ca_file` holds the certificates
    that a target's is checked against, instead of the system's. `proxy` is the only one ever used: it is asked for a
    tunnel to each target. With `search` the one phase is repeated at other loads, which depend on what the earlier ones
    showed. `metrics_port` serves the client's own metrics to Prometheus, on this host only. A level ends early when for
    `unreachable_seconds` every request that ended had failed to connect. With `promises_usage` false, for a server that
    ignores `stream_options`, answers are complete without usage, and have no metrics that count tokens.
    """

    seed: int = Field(ge=0)
    dialect: Dialect = "sglang"
    targets: Mapping[str, str]
    model: str = Field(min_length=1)
    workload: WorkloadConfig = WorkloadConfig()
    source: SourceConfig = ToolCallsSource()
    phases: tuple[Phase, ...] = Field(min_length=1)
    cancel_rate: float = Field(default=0.12, ge=0, le=1)
    connect_timeout_seconds: float = Field(default=5.0, gt=0)
    request_timeout_seconds: float = Field(default=60.0, gt=0)
    unreachable_seconds: float = Field(default=30.0, gt=0)
    most_response_bytes: int = Field(default=16 * 2**20, ge=1024)
    promises_usage: bool = True
    bearer_token_environment: str | None = None
    ca_file: Path | None = None
    is_verified: bool = True
    proxy: str | None = None
    slo: Slo | None = None
    limits: ValidityLimits = ValidityLimits()
    search: Search | None = None
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)

    @field_validator("targets")
    @classmethod
    def _are_urls(cls, targets: Mapping[str, str]) -> Mapping[str, str]:
        for url in targets.values():
            _check_url(url)
        return targets

    @field_validator("proxy")
    @classmethod
    def _is_plain_url(cls, proxy: str | None) -> str | None:
        if proxy is not None and _check_url(proxy).is_tls:
            raise ValueError(f"proxy {proxy!r} wants TLS to itself; give one at http://HOST:PORT")
        return proxy

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        seen: dict[tuple[str, int], int] = {}
        for position, phase in enumerate(self.phases):
            if phase.index != position:
                raise ValueError(f"phases[{position}].index is {phase.index}; number the phases 0, 1, 2, …")
            if phase.arm not in self.targets:
                raise ValueError(f"phases[{position}].arm is {phase.arm!r}, which targets does not name")
            key = (phase.arm, phase.level)
            seen[key] = seen.get(key, 0) + 1
            if seen[key] > _PAIR_SPAN:
                raise ValueError(f"arm {phase.arm!r} has more than {_PAIR_SPAN} phases of level {phase.level}")
        order = getattr(self.source, "order", "file")
        if order == "shuffled" and any(isinstance(phase.load, ReplayLoad) for phase in self.phases):
            raise ValueError("source.order is 'shuffled' with a replay; make it 'file', so that times and bodies agree")
        if self.search is not None:
            self._fits_search(self.search, self.phases)
        return self

    def _fits_search(self, search: Search, phases: tuple[Phase, ...]) -> None:
        wanted = "open" if search.kind == "rate" else "closed"
        if self.slo is None:
            raise ValueError("search needs an slo; give the limits that a load must keep to")
        if len(phases) != 1 or phases[0].load.kind != wanted:
            raise ValueError(f"search for {search.kind} repeats one phase; give one, its load {wanted}")

    def target(self, phase: Phase) -> Target:
        """Where the phase's requests go."""
        return Target.parse(self.targets[phase.arm])

    def pair(self, phase: Phase) -> int:
        """How many phases of the same arm and level come before a phase."""
        earlier = self.phases[: phase.index]
        return sum(1 for other in earlier if (other.arm, other.level) == (phase.arm, phase.level))

    def task_number(self, phase: Phase, label: Label, sequence: int) -> int:
        """Number of the phase's `sequence`-th request of a label.

        The n-th phase of a level in one arm has the same numbers as the n-th in another, so that both meet the same
        tasks; a level's further phases have others.
        """
        return task_number(phase, self.pair(phase), label, sequence)

    def bearer_token(self) -> str | None:
        """The token in the environment variable that the plan names; it is read, never stored. Raises PlanError."""
        if self.bearer_token_environment is None:
            return None
        token = os.environ.get(self.bearer_token_environment, "")
        if not token or not token.isascii() or not token.isprintable():
            raise PlanError(
                f"environment variable {self.bearer_token_environment} holds no bearer token; "
                "export it, or drop bearer_token_environment from the plan"
            )
        return token


def _check_url(url: str) -> Target:
    try:
        return Target.parse(url)
    except PlanError as error:
        raise ValueError(str(error)) from None


def task_number(phase: Phase, pair: int, label: Label, sequence: int) -> int:
    """As `Plan.task_number`, of the phase that has `pair` earlier ones of its arm and level. Raises PlanError."""
    if sequence >= SEQUENCE_SPAN:
        raise PlanError(f"phase {phase.index} sent {SEQUENCE_SPAN} requests of one kind; shorten its window")
    return ((phase.level * _PAIR_SPAN + pair) * _LABEL_SPAN + _LABEL_DIGIT[label]) * SEQUENCE_SPAN + sequence


def phase_names(phase: Phase) -> dict[str, Any]:
    """What names a phase in each event of it, whoever tells it: one driver, or the leader of several."""
    names = {"phase": phase.index, "arm": phase.arm, "level": phase.level, "load": phase.load.kind}
    if isinstance(phase.load, OpenLoad):
        names["rate_per_second"] = phase.load.rate_per_second
    return names | {"requests": phase.requests}


def load_plan(path: Path) -> Plan:
    """Read a plan file. Raises PlanError with one line that names the value and the remedy."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise PlanError(f"plan {path} cannot be read ({error.strerror}); give the path of a plan's JSON file") from None
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        # our own messages name the value, except where it is a secret.
        has_value = place and first["type"] not in ("missing", "json_invalid", "value_error")
        value = f" is {first['input']!r:.80}" if has_value else ""
        message = first["msg"].removeprefix("Value error, ")
        more = f" (and {len(others)} more)" if others else ""
        raise PlanError(f"plan {path}: {place or 'the whole'}{value}: {message}{more}") from None
