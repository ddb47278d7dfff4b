"""Deployments of stand-in workers, which start in a tenth of the time of real ones."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdwatch.stack import DeploymentSpec

Behave = Callable[..., None]
MakeSpec = Callable[..., DeploymentSpec]


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Behave:
    """Set what the stand-in workers do, by worker name: ``behave({"decode-0": {"silent": True}})``."""

    def set_behaviour(behaviour: dict[str, dict[str, Any]]) -> None:
        monkeypatch.setenv("STANDIN", json.dumps(behaviour))

    return set_behaviour


@pytest.fixture
def make_spec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MakeSpec:
    """Make specs of stand-in workers without router, unless told otherwise."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    weights = tmp_path / "weights.safetensors"
    weights.touch()

    def make(**fields: Any) -> DeploymentSpec:
        defaults: dict[str, Any] = {"router": False, "weights": weights, "worker_module": "standin_worker"}
        return DeploymentSpec(**{**defaults, **fields})

    return make


@pytest.fixture
def assert_gone() -> Callable[[list[int]], None]:
    """Assert that processes end within ten seconds; a pid that was never there counts as gone."""

    def check(pids: list[int]) -> None:
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                assert select.select([handle], [], [], 10.0)[0], f"process {pid} still runs"
            finally:
                os.close(handle)

    return check
