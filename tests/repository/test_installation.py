"""What `make` does before anything of this project runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

# pip fails with two lines, the last of which is its reason; the interpreter itself works
PIP = """#!/bin/sh
[ "$1" = -m ] || exit 0
echo "WARNING: retrying" >&2
echo "ERROR: No matching distribution found for torch" >&2
exit 1
"""


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX"])
def test_the_callers_python_settings_do_not_reach_recipes(root: Path, name: str) -> None:
    command = ["make", "--no-print-directory", "--eval=environment: ; @env", "environment"]
    environment = os.environ | {name: "/nowhere", "PIP_USER": "yes"}
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=20)
    seen = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    assert name not in seen
    assert seen["PIP_USER"] == "no"


def test_the_installer_of_torch_says_why_it_failed(root: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PIP, encoding="utf-8")
    python.chmod(0o755)
    command = ["sh", "requirements/install-torch", str(python)]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=20)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    # one line for each index that was tried; a machine with a GPU tries only the second
    assert lines[-1].startswith("PyTorch cannot be installed from the default index: ")
    assert all(line.endswith(": ERROR: No matching distribution found for torch") for line in lines)
