"""From the command line to the engines: the candidate gets what was asked for, the others stay plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pdwatch.gate.cli import main
from pdwatch.gate.commands.engine_options import engine_settings, with_environment
from pdwatch.gate.console import Talk
from pdwatch.gate.embedded import embedded_specs
from pdwatch.gate.errors import TargetError
from pdwatch.gate.policy import GatePolicy
from pdwatch.gate.session import GateRequest
from pdwatch.stack import DeploymentSpec, SpecInvalid

CAPTURE = ["--device", "cuda", "--kernels", "triton", "--capture", "--overlap", "racy"]
SETTINGS = {"device": "cuda", "kernels": "triton", "capture": True, "multi_stream_overlap": "racy"}


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GateRequest]:
    """Requests of `pdwatch gate`, which goes no further."""
    requests: list[GateRequest] = []

    def run_gate(request: GateRequest, talk: Talk) -> None:
        requests.append(request)
        raise TargetError("enough")

    monkeypatch.setattr("pdwatch.gate.session.run_gate", run_gate)
    monkeypatch.chdir(tmp_path)
    return requests


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [
        ([], None, {}),
        (CAPTURE, None, SETTINGS),
        (
            ["--no-capture", "--engine", "capture_batch_sizes=[1,8]"],
            None,
            {"capture": False, "capture_batch_sizes": [1, 8]},
        ),
        ([], "triton", {"kernels": "triton"}),
        (["--kernels", "eager"], "triton", {"kernels": "eager"}),
        (["--engine", "kernels=eager"], "triton", {"kernels": "eager"}),
        (["--engine", "num_pages=256", "--kernels", "triton"], None, {"num_pages": 256, "kernels": "triton"}),
        (["--target", "http://a"], "triton", {}),
    ],
    ids=["nothing", "capture", "assignment", "variable", "option-first", "assignment-first", "both", "existing"],
)
def test_what_the_engine_is_asked_to_be(
    arguments: list[str],
    variable: str | None,
    expected: dict[str, Any],
    requested: list[GateRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable is not None:
        monkeypatch.setenv("PDWATCH_KERNELS", variable)
    assert main(["gate", "-q", *arguments]) == 3
    assert [dict(request.engine) for request in requested] == [expected]


def test_the_baseline_stays_plain_on_the_same_device(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[DeploymentSpec] = []
    monkeypatch.setattr("pdwatch.gate.embedded.check_settings", checked.append)
    candidate, baseline = embedded_specs(GateRequest(GatePolicy(), engine=SETTINGS | {"num_pages": 256}))
    assert checked == [candidate]
    assert candidate.engine == {**SETTINGS, "num_pages": 256}
    assert baseline.engine == {
        "device": "cuda",
        "num_pages": 256,
        "kernels": "eager",
        "capture": False,
        "multi_stream_overlap": "off",
    }
    assert embedded_specs(GateRequest(GatePolicy()))[1].engine == {}


@pytest.mark.parametrize("words", ["num_pages", "=3"])
def test_an_assignment_of_another_form_is_refused(words: str) -> None:
    with pytest.raises(SpecInvalid, match=f"--engine {words} is not KEY=VALUE"):
        engine_settings([words])


def test_an_empty_variable_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDWATCH_KERNELS", "")
    assert with_environment({"capture": True}) == {"capture": True}


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without a GPU")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gate", *CAPTURE], "device is cuda, PyTorch sees 0 CUDA devices here: use cpu"),
        (["gate", "--capture"], "capture needs a CUDA device, not cpu: set capture to false or device to cuda"),
        (["gate", "--overlap", "sometimes"], "multi_stream_overlap is 'sometimes'"),
        (["gate", "--overlap", "racy"], "only acts inside a capture: set capture to true"),
        (["gate", "--kernels", "fast"], "kernels `fast` do not exist, use one of: eager, triton"),
        (["gate", "--device", "tpu"], "device is 'tpu'"),
        (["gate", "--engine", "pages=3"], "no key is named pages: use one of role, "),
        (["gate", "--capture", "--device", "cuda", "--fault", "slow_step"], "PyTorch sees 0 CUDA devices here"),
        (["gate", "--target", "http://127.0.0.1:1", "--capture"], "--capture, --overlap)` acts on the embedded"),
        (["up", "--kernels", "fast"], "kernels `fast` do not exist, use one of: eager, triton"),
        (["up", "--engine", "device=cuda"], "device is cuda, PyTorch sees 0 CUDA devices here: use cpu"),
    ],
)
def test_what_cannot_run_here_is_one_line_and_exit_3(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
