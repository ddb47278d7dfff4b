"""From the settings of a deployment to those of each worker: who captures, who overlaps, who stays plain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pdwatch.stack import PLAIN_ENGINE, Deployment, DeploymentSpec, SpecInvalid, check_settings
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.worker import CannotStart, WorkerConfig
from pdwatch.stack.embedded.worker import main as run_worker
from pdwatch.stack.workers import engine_settings

CAPTURED = {
    "device": "cuda",
    "capture": True,
    "capture_batch_sizes": [1, 8],
    "multi_stream_overlap": "racy",
    "kernels": "triton",
}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("decode", {"capture": True, "multi_stream_overlap": "racy", "kernels": "triton"}),
        # there is nothing to capture where nothing is decoded
        ("prefill", {"capture": False, "multi_stream_overlap": "off", "kernels": "triton"}),
        ("unified", {"capture": False, "multi_stream_overlap": "off", "kernels": "eager"}),
    ],
    ids=["decode", "prefill", "reference"],
)
def test_a_role_takes_what_concerns_it(role: str, expected: dict[str, Any]) -> None:
    config = EngineConfig.model_validate(engine_settings(DeploymentSpec(engine=CAPTURED), role))
    assert config.model_dump(include=set(expected)) == expected
    assert (config.device, config.capture_batch_sizes) == ("cuda", (1, 8))


def test_plain_settings_are_plain() -> None:
    config = EngineConfig.model_validate(engine_settings(DeploymentSpec(engine={**CAPTURED, **PLAIN_ENGINE}), "decode"))
    default = EngineConfig()
    for name in PLAIN_ENGINE:
        assert getattr(config, name) == getattr(default, name)
    assert config.device == "cuda"


def test_what_a_worker_is_started_with(
    make_spec: Callable[..., DeploymentSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a kernel setting of the shell must not reach the reference
    monkeypatch.setenv("PDWATCH_KERNELS", "triton")
    settings = {**CAPTURED, "device": "cpu", "capture": False, "multi_stream_overlap": "off", "kernels": "eager"}
    with Deployment.start(make_spec(engine=settings), tmp_path / "run"):
        configs = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "run" / "config").iterdir()}
    assert {name: config["engine"]["kernels"] for name, config in configs.items()} == dict.fromkeys(configs, "eager")
    assert configs["decode-0"]["engine"]["capture_batch_sizes"] == [1, 8]


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without a GPU")
@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"device": "cuda"}, "device is cuda, PyTorch sees 0 CUDA devices here: use cpu or another one"),
        (CAPTURED, "device is cuda, PyTorch sees 0 CUDA devices here: use cpu or another one"),
        ({"capture": True}, "capture needs a CUDA device, not cpu: set capture to false or device to cuda"),
        ({"kernels": "fast"}, "kernels `fast` do not exist, use one of: eager, triton"),
        ({"kernels": "triton"}, "kernels `triton` need "),
    ],
    ids=["device", "capture", "capture-on-cpu", "unknown-kernels", "kernels"],
)
def test_what_this_machine_cannot_run_is_refused_first(engine: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid) as caught:
        check_settings(DeploymentSpec(engine=engine))
    assert str(caught.value).startswith("engine settings: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_worker_takes_other_kernels_and_the_reference_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, Any] = {"name": "w", "role": "unified", "port": 0, "engine": {}, "weights": tmp_path / "absent"}
    assert WorkerConfig(**fields).with_kernels("triton").engine.kernels == "triton"
    with pytest.raises(CannotStart, match="w is the eager reference, kernels triton are not for it"):
        WorkerConfig(**fields, eager=True).with_kernels("triton")
    path = tmp_path / "worker.json"
    path.write_text(json.dumps({**fields, "weights": str(fields["weights"]), "eager": True}))
    assert run_worker(["--config", str(path), "--kernels", "triton"]) == 3
    assert capsys.readouterr().err.strip().endswith("leave --kernels out")
