"""Runs the interpreted checks of the Triton indexer in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
CHECKS = Path(__file__).parent / "interpreted" / "check_indexer.py"


def test_kernels_under_the_interpreter() -> None:
    # Triton reads the variable when a kernel is decorated; an access out of bounds ends the process.
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(CHECKS.parent)]
    command += ["-p", "no:cacheprovider", "-W", "error", str(CHECKS)]
    # a plugin that warns about its own settings would end the run.
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
