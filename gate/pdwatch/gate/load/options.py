"""What the command line of `pdwatch load` asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pdwatch.gate.errors import OptionError

DEFAULT_LEVELS = "1,4,16"
MOST_IN_FLIGHT = 1024

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """One field an option; see the command's help. None is "not given"."""

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
    workload: str | None = None
    prompt_words: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    cancel_rate: float = 0.0
    seed: int = 1
    slo: str | None = None
    slo_share: float = 0.95
    find_capacity: bool = False
    most: float = 512.0
    model: str | None = None
    dialect: Literal["auto", "sglang", "openai"] = "auto"
    timeout: float = 300.0
    bearer_token_environment: str | None = None
    ca_file: Path | None = None
    insecure: bool = False
    max_loop_lag: float = 0.02
    metrics_port: int | None = None
    processes: int = 1
    expect_workers: int | None = None
    bind: str | None = None
    web: str | None = None

    def __post_init__(self) -> None:
        shapes = {"--rate": self.rate, "--ramp": self.ramp, "--waves": self.waves, "--replay": self.replay}
        given = [name for name, value in shapes.items() if value is not None]
        if len(given) > 1:
            raise OptionError(f"{given[0]} and {given[1]} are two shapes of load: give one of them")
        if self.levels is not None and given and given[0] != "--ramp":
            raise OptionError(f"--levels is for users in closed loop: leave it out, or leave out {given[0]}")
        if self.find_capacity and self.slo is None:
            raise OptionError("--find-capacity needs limits to meet: add --slo, as in --slo ttft=1s,tpot=50ms")
        if self.find_capacity and given and given[0] != "--rate":
            raise OptionError(f"--find-capacity varies users or --rate: leave out {given[0]}")
        if self.expect_workers is not None and self.processes > 1:
            raise OptionError("--processes starts workers here, --expect-workers waits for others': give one of them")
        if self.bind is not None and self.expect_workers is None:
            raise OptionError("--bind is where workers of other machines join: add --expect-workers N, or leave it out")
        if self.stagger is not None and given:
            raise OptionError(f"--stagger is for users in closed loop: leave it out, or leave out {given[0]}")


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
