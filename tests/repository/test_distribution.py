from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==\S+ \\$")


def build(target: str, source: Path, directory: Path) -> Path:
    """Build with hatchling as installed: no build environment, no network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory)]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    (artefact,) = directory.iterdir()
    return artefact


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def tree(portions: dict[str, Path]) -> set[str]:
    """Every file of every portion, under the name it must have in a wheel."""
    return {
        str(path.relative_to(package.parents[1]))
        for package in portions.values()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file(root: Path, tree: set[str], tmp_path: Path) -> None:
    assert contents(build("wheel", root, tmp_path)) == tree


def test_the_wheel_by_way_of_the_sdist_has_every_file(root: Path, tree: set[str], tmp_path: Path) -> None:
    with tarfile.open(build("sdist", root, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert contents(build("wheel", unpacked, tmp_path / "wheel")) == tree


def requirements(path: Path) -> set[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line and not line.startswith("-")}


def test_dependencies_are_listed_once_in_meaning(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["dependencies"]) == requirements(root / "requirements" / "base.in") | {"torch"}


def test_the_lock_pins_and_hashes_everything_asked_for(root: Path) -> None:
    pinned: dict[str, int] = {}
    name = ""
    for line in (root / "requirements" / "lock.txt").read_text(encoding="utf-8").splitlines():
        if match := PINNED.match(line):
            name = match[1]
            pinned[name] = 0
        elif line.startswith("    --hash=sha256:"):
            pinned[name] += 1
        else:
            assert not line.strip() or line.lstrip().startswith("#"), f"neither a pin nor a hash: {line}"
    assert all(pinned.values())
    asked_for = requirements(root / "requirements" / "base.in") | requirements(root / "requirements" / "dev.in")
    assert {requirement.split("==")[0] for requirement in asked_for} <= pinned.keys()
    assert "torch" not in pinned


def test_requirements_name_no_place(root: Path) -> None:
    # a lock that works here only, or that leads elsewhere, is none
    for path in (root / "requirements").glob("*.txt"):
        assert not re.search(r"://|--(extra-)?index-url|--find-links|file:/|@ ", path.read_text(encoding="utf-8")), path
