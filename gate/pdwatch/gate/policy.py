"""The gate's policy: what is driven, what is judged, and which limits decide.

Read once at the edge by `load_policy`; precedence is defaults < file < `--set` < command-line options.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from pdwatch.gate.errors import PolicyError
from pdwatch.gate.redact import redact_url

MAXIMUM_LEVEL = 4096


class Section(BaseModel):
    """A table of the policy file: frozen, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LoadPolicy(Section):
    """How the deployment is driven: closed-loop users at rising levels."""

    levels: tuple[int, ...] = (1, 4, 16, 32)
    window_seconds: float = Field(default=10.0, gt=0, le=86_400)
    warmup_seconds: float = Field(default=2.0, ge=0, le=3_600)
    seed: int = Field(default=1, ge=0, lt=2**63)
    cancel_rate: float = Field(default=0.12, ge=0, lt=1)
    request_timeout_seconds: float = Field(default=60.0, gt=0, le=3_600)
    dialect: Literal["sglang", "openai"] = "sglang"
    workload: dict[str, Any] = Field(default_factory=dict)

    @field_validator("levels", mode="before")
    @classmethod
    def _levels_from_text(cls, levels: object) -> object:
        if not isinstance(levels, str):
            return levels
        try:
            return tuple(int(part) for part in levels.split(","))
        except ValueError:
            raise ValueError("write whole numbers with commas between them, such as `1,4,16,32`") from None

    @field_validator("levels")
    @classmethod
    def _levels_send_something(cls, levels: tuple[int, ...]) -> tuple[int, ...]:
        if not levels:
            raise ValueError("no level given: name at least one, such as `1,4,16,32`")
        for level in levels:
            if not 1 <= level <= MAXIMUM_LEVEL:
                raise ValueError(f"level {level} cannot be driven: use whole numbers from 1 to {MAXIMUM_LEVEL}")
        if len(set(levels)) != len(levels):
            raise ValueError("a level is named twice: name each once")
        return tuple(sorted(levels))


class CorrectnessPolicy(Section):
    """Which answers fail the gate.

    `near_tie_nats` is the largest gap between the reference's best token and the received one that still
    counts as a benign flip. Limits are per level, on measured requests of the candidate.
    """

    near_tie_nats: float = Field(default=0.5, ge=0)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    max_corrupt: int = Field(default=0, ge=0)
    max_protocol: int = Field(default=0, ge=0)
    max_error_ratio: float = Field(default=0.0, ge=0, le=1)


class ValidityPolicy(Section):
    """What a level must have reached before its silence means anything.

    `max_loop_lag_seconds` is how late (p99) the load generator may come round to stamp arrivals; it is far above what
    `pdwatch load` allows, since the embedded deployment takes its processors from it.
    """

    min_scored: int = Field(default=8, ge=1)
    min_running_batch: int = Field(default=2, ge=2)
    max_model_error_ratio: float = Field(default=0.2, ge=0, le=1)
    reference_required: bool = True
    max_loop_lag_seconds: float = Field(default=0.1, gt=0)


class RegressionPolicy(Section):
    """When a slow-down against the baseline fails the gate; see `compare.py` for the method.

    `ttft_ratio` is off by default: TTFT is shown, not gated.
    """

    tpot_ratio: float = Field(default=1.10, gt=1)
    ttft_ratio: float | None = Field(default=None, gt=1)
    confidence: float = Field(default=0.995, gt=0.5, lt=1)
    min_requests: int = Field(default=8, ge=2)
    block_seconds: float = Field(default=1.0, gt=0)
    resamples: int = Field(default=2_000, ge=200, le=100_000)


def _without_secrets(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("it holds credentials: name their environment variable in targets.bearer_token_environment")
    if "?" in url or "#" in url:
        raise ValueError("give the base URL without a query")
    return url


Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+"), AfterValidator(_without_secrets)]


class TargetsPolicy(Section):
    """An existing deployment. Without `router` the gate starts the embedded one.

    Secrets come only from the environment: `bearer_token_environment` names the variable.
    """

    router: Url | None = None
    router_metrics: Url | None = None
    prefill: tuple[Url, ...] = ()
    decode: tuple[Url, ...] = ()
    reference: Url | None = None
    baseline: Url | None = None
    model: str | None = None
    bearer_token_environment: str | None = None


class GatePolicy(Section):
    """The whole policy."""

    load: LoadPolicy = LoadPolicy()
    correctness: CorrectnessPolicy = CorrectnessPolicy()
    validity: ValidityPolicy = ValidityPolicy()
    regression: RegressionPolicy = RegressionPolicy()
    targets: TargetsPolicy = TargetsPolicy()

    def without_baseline(self) -> GatePolicy:
        """The same policy with no deployment to compare with."""
        return self.model_copy(update={"targets": self.targets.model_copy(update={"baseline": None})})


def load_policy(
    file: Path | None = None,
    assignments: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
) -> GatePolicy:
    """Build the policy from a TOML file, `a.b=c` assignments and option values keyed by dotted name.

    Option values of None are options that were not given. Raises PolicyError with one line.
    """
    tree: dict[str, Any] = {} if file is None else _read_toml(file)
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            raise PolicyError(f"`--set {assignment}` has no value: write it as `--set load.seed=7`")
        _assign(tree, key.strip(), _parse_value(text.strip()))
    for key, value in (options or {}).items():
        if value is not None:
            _assign(tree, key, value)
    try:
        return GatePolicy.model_validate(tree)
    except ValidationError as error:
        raise PolicyError(_one_line(error)) from error


def policy_keys() -> tuple[str, ...]:
    """All dotted keys that `--set` takes."""
    return tuple(
        f"{section}.{key}"
        for section, field in GatePolicy.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for key in field.annotation.model_fields
    )


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"cannot read policy file `{file}`: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"policy file `{file}` is not TOML: {error}") from error


def _parse_value(text: str) -> Any:
    """Read the right side of `--set` as TOML; what is not TOML is a plain string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    node = tree
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise PolicyError(f"`{dotted}` goes through `{section}`, which is a value: {_known(dotted)}")
        node = child
    node[last] = value


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"] if isinstance(part, str)) or "policy"
    if first["type"] == "extra_forbidden":
        return f"unknown policy key `{key}`: {_known(key)}"
    if first["type"] == "model_type":
        return f"policy key `{key}` is a table, not a value: {_known(key)}"
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = redact_url(str(first["input"]))
    return f"policy key `{key}` cannot be `{shown}`: {message[:1].lower()}{message[1:]}"


def _known(key: str) -> str:
    keys = policy_keys()
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    # a key without its section is the commonest slip
    close = close or [known for known in keys if known.endswith(f".{key}")]
    if close:
        return f"did you mean `{close[0]}`?"
    return "known tables are " + ", ".join(f"`{section}`" for section in GatePolicy.model_fields)
