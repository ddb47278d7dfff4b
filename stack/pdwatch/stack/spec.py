"""What a deployment consists of, validated once where it enters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdwatch.stack.errors import SpecInvalid

Port = Annotated[int, Field(ge=1, le=65535)]

WORKER_MODULE = "pdwatch.stack.embedded.worker"
DEFAULT_WEIGHTS = Path(__file__).parent / "embedded" / "weights" / "tiny_toolcaller.safetensors"


class DeploymentSpec(BaseModel):
    """A deployment: its workers, router, reference, fault and asked-for ports.

    ``engine`` overrides fields of the engine's configuration on every worker; ``fault`` acts on the prefill and decode
    workers, never on the reference. Keys of ``ports`` are those of ``port_names``. ``worker_module`` is run as
    ``python -m MODULE --config FILE`` and serves SGLang's protocol.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="pdwatch", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    prefill: int = Field(default=1, ge=1, le=16)
    decode: int = Field(default=1, ge=1, le=16)
    reference: bool = True
    router: bool = True
    fault: str | None = None
    fault_seed: int = 0
    engine: dict[str, Any] = Field(default_factory=dict)
    ports: dict[str, Port] = Field(default_factory=dict)
    weights: Path | None = None
    worker_module: str = WORKER_MODULE

    @classmethod
    def checked(cls, **fields: Any) -> Self:
        """Build a spec from what a user gave. Raises SpecInvalid, one line, where the constructor has pydantic's."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise describe_validation_error("deployment", error, cls) from error

    @property
    def weights_path(self) -> Path:
        """The weights file all workers load."""
        return (self.weights or DEFAULT_WEIGHTS).absolute()

    @property
    def port_names(self) -> tuple[str, ...]:
        """Names under which a port may be asked for."""
        names: list[str] = []
        for index in range(self.prefill):
            names += [f"prefill-{index}", f"prefill-{index}.bootstrap", f"prefill-{index}.transfer"]
        names += [f"decode-{index}" for index in range(self.decode)]
        if self.reference:
            names.append("reference")
        if self.router:
            names += ["router", "router.metrics"]
        return tuple(names)

    @model_validator(mode="after")
    def _ports_fit(self) -> Self:
        unknown = sorted(self.ports.keys() - set(self.port_names))
        if unknown:
            raise ValueError(f"no port is named {unknown[0]}: use one of {', '.join(self.port_names)}")
        if len(set(self.ports.values())) < len(self.ports):
            raise ValueError(f"one port is asked for twice: {self.ports}")
        return self


def describe_validation_error(subject: str, error: ValidationError, model: type[BaseModel]) -> SpecInvalid:
    """Turn the first finding of pydantic into one line that names field, value and what would do."""
    finding = error.errors()[0]
    field = ".".join(str(part) for part in finding["loc"])
    if finding["type"] == "extra_forbidden":
        return SpecInvalid(f"{subject}: no key is named {field}: use one of {', '.join(model.model_fields)}")
    message = finding["msg"].removeprefix("Value error, ")
    if not field:
        return SpecInvalid(f"{subject}: {message}")
    return SpecInvalid(f"{subject}: {field} is {finding['input']!r:.80}: {message}")
