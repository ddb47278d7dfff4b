"""Plans of the embedded workers of a deployment: their configuration files and their commands."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pdwatch.stack.errors import SpecInvalid
from pdwatch.stack.health import PROBE_SECONDS, is_healthy
from pdwatch.stack.ports import HOST, PortTable
from pdwatch.stack.processes import ProcessPlan
from pdwatch.stack.spec import DeploymentSpec, describe_validation_error

SERVED_MODEL_NAME = "tiny-toolcaller"

# one stream, nothing captured, plain PyTorch
PLAIN_ENGINE: dict[str, Any] = {"capture": False, "multi_stream_overlap": "off", "kernels": "eager"}

# batch 1 and no reuse as well, and no fault: the path that the others are judged by
_REFERENCE_ENGINE: dict[str, Any] = {**PLAIN_ENGINE, "max_running_requests": 1, "prefix_cache": False}

# there is no decode step to capture, and what goes on beside it is off with it
_PREFILL_ENGINE: dict[str, Any] = {"capture": False, "multi_stream_overlap": "off"}

# fields of the engine's configuration that the deployment fills in itself
_NOT_ENGINE_SETTINGS = {
    "role": "each worker has its own, leave it out",
    "fault": "the reference must stay without, give it to the deployment: --fault NAME",
    "fault_seed": "the reference must stay without, give it to the deployment: --fault-seed NUMBER",
}


def engine_settings(spec: DeploymentSpec, role: str) -> dict[str, Any]:
    """Engine configuration of a worker of ``role``: the overrides of ``spec`` under what the role demands."""
    if role == "unified":
        return {**spec.engine, **_REFERENCE_ENGINE, "role": role}
    settings = {**spec.engine, "role": role, "fault": spec.fault, "fault_seed": spec.fault_seed}
    return settings | _PREFILL_ENGINE if role == "prefill" else settings


def check_settings(spec: DeploymentSpec) -> None:
    """Raise SpecInvalid for what would only fail later and less clearly, in a worker."""
    # the engine's modules are needed by no one who merely names a deployment
    from pdwatch.stack.embedded.config import EngineConfig

    if not spec.weights_path.is_file():
        raise SpecInvalid(f"weights file {spec.weights_path} does not exist: name another one")
    for key, remedy in _NOT_ENGINE_SETTINGS.items():
        if key in spec.engine:
            raise SpecInvalid(f"engine settings: {key} is {spec.engine[key]!r:.80}: {remedy}")
    for role in ("prefill", "decode", "unified"):
        try:
            config = EngineConfig.model_validate(engine_settings(spec, role))
        except ValidationError as error:
            raise describe_validation_error("engine settings", error, EngineConfig) from error
        if (config.device, config.kernels) != ("cpu", "eager"):
            _check_hardware(config.device, config.kernels)
    if spec.fault is not None:
        from pdwatch.stack.embedded.faults import catalogue

        known = [fault.name for fault in catalogue()]
        if spec.fault not in known:
            raise SpecInvalid(f"no fault is named {spec.fault}: use one of {', '.join(known)}")


def _check_hardware(device: str, kernels: str) -> None:
    """Raise SpecInvalid when `device` is not here or `kernels` do not run on it."""
    # loads PyTorch, which the plain deployment leaves to its workers
    from pdwatch.stack.embedded.device import check_device, kernels_on
    from pdwatch.stack.embedded.errors import ConfigurationError

    try:
        check_device(device)
        kernels_on(device, kernels)
    except ConfigurationError as error:
        raise SpecInvalid(f"engine settings: {error}") from error


def worker_plan(spec: DeploymentSpec, name: str, role: str, ports: PortTable, configs: Path) -> ProcessPlan:
    """Reserve the worker's ports, write its configuration to ``configs`` and plan it. Raises PortInUse."""
    port = ports.reserve(name)
    config: dict[str, Any] = {
        "name": name,
        "role": role,
        "host": HOST,
        "port": port,
        "engine": engine_settings(spec, role),
        "weights": str(spec.weights_path),
        "served_model_name": SERVED_MODEL_NAME,
        "eager": role == "unified",
    }
    if role == "prefill":
        config["bootstrap_port"] = ports.reserve(f"{name}.bootstrap")
        config["transfer_port"] = ports.reserve(f"{name}.transfer")
    path = configs / f"{name}.json"
    path.write_text(json.dumps(config, indent=2) + os.linesep, encoding="utf-8")
    url = f"http://{HOST}:{port}"
    return ProcessPlan(
        name=name,
        role="reference" if role == "unified" else role,
        arguments=("-m", spec.worker_module, "--config", str(path)),
        url=url,
        is_ready=partial(is_healthy, url, PROBE_SECONDS),
    )
