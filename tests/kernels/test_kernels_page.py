"""docs/kernels.md says what the code has: checks, bug classes, mutants, measured families."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pdwatch.kernels.harness.checks import CHECKS
from pdwatch.kernels.harness.mutants.run import EAGER


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")


def test_every_check_is_in_the_table(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page.partition("| check |")[2].partition("\n\n")[0], re.MULTILINE)
    assert rows == [(check.name, check.guards) for check in CHECKS]


def test_every_bug_class_that_a_check_names_is_told(page: str) -> None:
    told = set(re.findall(r"^\| ([BH]\d+) \|", page, re.MULTILINE))
    named = {name for check in CHECKS for name in re.findall(r"\b[BH]\d+\b", check.guards)}
    assert named <= told


def test_the_number_of_mutants_is_right(page: str) -> None:
    assert f"mutants: {len(EAGER)} of the references" in page
