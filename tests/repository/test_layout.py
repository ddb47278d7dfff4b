from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

LONGEST_MODULE_LINES = 400
# what the face of a portion must not load: it would take seconds of every command, or patch the whole process
HEAVY = {"torch", "gevent", "locust"}
# the kernels are functions on tensors
MAY_LOAD = {"kernels": {"torch"}}

FACE = """
import importlib, json, sys, types
face = importlib.import_module(sys.argv[1])
names = [name for name, value in vars(face).items() if not name.startswith("_") and name != "annotations"
         and not isinstance(value, types.ModuleType)]
print(json.dumps({"all": face.__all__, "visible": sorted(names), "doc": face.__doc__, "loaded": sorted(sys.modules)}))
"""

KERNELS = """
import importlib.util
spec = importlib.util.find_spec("kernels")
print("none" if spec is None else "namespace" if spec.origin is None else spec.origin)
"""


@pytest.fixture(scope="session")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_portion_has_a_face_and_types(portions: dict[str, Path], portion: str) -> None:
    for name in ("__init__.py", "py.typed"):
        assert (portions[portion] / name).is_file(), f"{portion} lacks {name}"


def test_the_namespace_belongs_to_no_portion(root: Path, portion: str) -> None:
    assert not list((root / portion).glob("*.py")), "a top-level folder is a sys.path entry: no modules directly in it"
    assert [path.name for path in (root / portion / "pdwatch").iterdir() if path.name != "__pycache__"] == [portion]


def test_every_package_folder_is_a_package(portions: dict[str, Path], portion: str) -> None:
    folders = {module.parent for module in portions[portion].rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_modules_are_short(root: Path, portion: str) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (root / portion).rglob("*.py")}
    assert not {str(path.relative_to(root)): lines for path, lines in lengths.items() if lines > LONGEST_MODULE_LINES}


def test_a_face_is_what_it_says_and_light(root: Path, portion: str) -> None:
    # in a process of its own: what the tests themselves have loaded must not count
    command = [sys.executable, "-W", "error", "-c", FACE, f"pdwatch.{portion}"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    face = json.loads(result.stdout)
    assert face["doc"], f"pdwatch.{portion} has no docstring"
    assert sorted(face["all"]) == face["visible"]
    assert not (HEAVY - MAY_LOAD.get(portion, set())) & set(face["loaded"])


def test_the_name_kernels_stays_free_for_others(root: Path) -> None:
    # Hugging Face's package of this name is what SGLang and transformers import; -c puts the root on sys.path
    result = subprocess.run([sys.executable, "-c", KERNELS], cwd=root, capture_output=True, text=True, check=True)
    origin = result.stdout.strip()
    assert origin in ("none", "namespace") or not Path(origin).is_relative_to(root)


def test_pyproject_lists_every_portion(project: dict[str, Any], portions: dict[str, Path]) -> None:
    names = set(portions)
    tool = project["tool"]
    assert set(tool["hatch"]["build"]["dev-mode-dirs"]) == names
    wheel = tool["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["sources"]) == names
    assert set(wheel["only-include"]) == {f"{name}/pdwatch" for name in names}
    assert set(tool["ruff"]["src"]) == names
    assert set(tool["mypy"]["mypy_path"].split(":")) == names
    assert set(tool["mypy"]["files"]) == names | {"tests"}


def test_the_architecture_page_has_a_row_for_each_folder(root: Path, portions: dict[str, Path]) -> None:
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)/` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted([*portions, "docs", "requirements", "tests"])
    assert all((root / row).is_dir() for row in rows)
