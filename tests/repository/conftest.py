"""The repository as the tests see it: its root and the portions of the namespace in it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def portions(root: Path) -> dict[str, Path]:
    """Package folder of each portion by name: ``{"stack": <root>/stack/pdwatch/stack}``."""
    found = {folder.parent.name: folder for folder in sorted(root.glob("*/pdwatch"))}
    return {name: namespace / name for name, namespace in found.items()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``portion`` once per portion, so that a new folder is tested from its first day."""
    if "portion" in metafunc.fixturenames:
        metafunc.parametrize("portion", sorted(folder.parent.name for folder in ROOT.glob("*/pdwatch")))
