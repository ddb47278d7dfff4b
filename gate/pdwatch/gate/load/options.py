"""What the command line of `pdwatch load` asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal, TypeVar

from pdwatch.gate.errors import OptionError

DEFAULT_LEVELS = "1,4,16"
MOST_IN_FLIGHT = 1024

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """One field an option; see the command's help. None is "not given".

    `given` has the fields that the command line names, so that one with its usual value is known to be meant.
    Raises OptionError for options of which one would be ignored.
    """

    url: str
    levels: str | None = None
    requests: int | None = None
    duration: float = 20.0
    warmup: float = 3.0
    rate: str | None = None
    arrivals: Literal["poisson", "constant", "gamma"] = "poisson"
    burstiness: float = 1.0
    most_in_flight: int = MOST_IN_FLIGHT
    ramp: float | None = None
    stagger: float | None = None
    waves: str | None = None
    repeats: int = 3
    replay: Path | None = None
    speed: float = 1.0
    source: Path | None = None
    workload: str | None = None
    prompt_words: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    has_no_usage: bool = False
    cancel_rate: float = 0.0
    seed: int = 1
    slo: str | None = None
    slo_share: float = 0.95
    check_slo: bool = False
    find_capacity: bool = False
    most: float = 512.0
    most_minutes: float | None = None
    model: str | None = None
    dialect: Literal["auto", "sglang", "openai"] = "auto"
    timeout: float = 300.0
    bearer_token_environment: str | None = None
    ca_file: Path | None = None
    insecure: bool = False
    max_loop_lag: float | None = None
    metrics_port: int | None = None
    processes: int = 1
    expect_workers: int | None = None
    bind: str | None = None
    web: str | None = None
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for rule in NEEDS:
            if self.is_given(rule.field) and not any(self.is_given(other) for other in rule.others):
                others = " or ".join(map(option, rule.others))
                raise OptionError(f"{option(rule.field)} {rule.reason}: add {others}, or leave it out")
        for rule in CLASHES:
            for other in rule.others:
                if self.is_given(rule.field) and self.is_given(other):
                    raise OptionError(f"{option(rule.field)} and {option(other)}: {rule.reason}; leave out one of them")
        for field in ("levels", "rate"):
            given = getattr(self, field)
            if self.find_capacity and given is not None and "," in given:
                raise OptionError(
                    f"--find-capacity begins at one load and finds the others: give {option(field)} one number, not "
                    f"`{given}`"
                )

    def is_given(self, field: str) -> bool:
        """Whether the command line has the option of a field, or it differs from what it is without."""
        return field in self.given or getattr(self, field) != _DEFAULTS[field]


@dataclass(frozen=True, slots=True)
class Rule:
    """How an option goes with others, with the reason why; the names are those of LoadOptions' fields."""

    field: str
    others: tuple[str, ...]
    reason: str


_DEFAULTS: Final = {field.name: field.default for field in fields(LoadOptions)}

# options that do nothing without one of the others.
NEEDS: Final = (
    Rule("check_slo", ("slo",), "has no limits to check"),
    Rule("slo_share", ("slo",), "is the share of requests that keep to the limits"),
    Rule("find_capacity", ("slo",), "needs limits to meet, as in --slo ttft=1s,tpot=50ms"),
    Rule("most", ("find_capacity",), "is where a search ends"),
    Rule("most_minutes", ("find_capacity",), "is the time for a search"),
    Rule("arrivals", ("rate",), "says how the schedule of --rate is drawn"),
    Rule("burstiness", ("rate",), "says how the schedule of --rate is drawn"),
    Rule("most_in_flight", ("rate", "replay"), "bounds an open loop"),
    Rule("repeats", ("waves",), "says how often waves are gone through"),
    Rule("speed", ("replay",), "says how fast a trace is replayed"),
    Rule("bind", ("expect_workers",), "is where workers of other machines join"),
)

# options of which one would be ignored.
CLASHES: Final = (
    Rule("rate", ("ramp", "waves", "replay"), "they are two shapes of load"),
    Rule("ramp", ("waves", "replay", "stagger"), "they are two shapes of load"),
    Rule("waves", ("replay",), "they are two shapes of load"),
    Rule("levels", ("rate", "waves", "replay"), "levels are users in closed loop, the other has none"),
    Rule("stagger", ("rate", "waves", "replay"), "users are staggered in closed loop only"),
    Rule("requests", ("duration",), "a measured part ends by either"),
    Rule("waves", ("requests", "duration"), "waves end by themselves"),
    Rule("replay", ("requests", "duration"), "a trace ends by itself"),
    Rule("replay", ("warmup",), "a trace is sent as it is, all of it measured"),
    Rule("find_capacity", ("ramp", "waves", "replay"), "a search varies users in closed loop, or --rate"),
    Rule("find_capacity", ("requests", "duration"), "a search sends as many requests as each decision needs"),
    Rule("find_capacity", ("check_slo",), "a search goes on to loads that miss the limits"),
    Rule("processes", ("expect_workers",), "the one starts workers here, the other waits for others'"),
    Rule("insecure", ("ca_file",), "a certificate is either checked or not"),
    Rule("source", ("workload", "prompt_words", "max_tokens", "ignore_eos"), "the file says all that"),
)


def option(field: str) -> str:
    """How the option of a field is written."""
    written = {"bearer_token_environment": "--bearer-token-env", "has_no_usage": "--no-usage"}
    return written.get(field) or f"--{field.replace('_', '-')}"


def driver_arguments(options: LoadOptions) -> tuple[str, ...]:
    """What the leader of several drivers is told besides the plan; nothing when one driver is enough."""
    if options.expect_workers is None and options.processes == 1 and options.web is None:
        return ()
    if options.expect_workers is None:
        who = ["--processes", str(options.processes)]
    else:
        who = ["--expect-workers", str(options.expect_workers)]
    where = [] if options.bind is None else ["--bind", options.bind]
    return (*who, *where, *([] if options.web is None else ["--web", options.web]))


def numbers(option: str, text: str, kind: Callable[[str], Number], least: Number, example: str) -> list[Number]:
    """The numbers of `1,16,64`, each given once. Raises OptionError."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"{option} `{text}` is no list of numbers: write it as {example}") from None
    for number in found:
        # also catches NaN
        if not least <= number <= 1_000_000 or number == 0:
            raise OptionError(f"{option} `{text}` has {number:g}: every number must be above 0, at most 1,000,000")
    return found
