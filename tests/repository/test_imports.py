from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

# who may import whom; a portion that is not here has yet to be given its place
ALLOWED = {
    "kernels": set[str](),
    "loadgen": set[str](),
    "exporters": set[str](),
    "stack": {"kernels"},
    "correctness": {"loadgen"},
    "dashboards": {"exporters", "loadgen"},
    "gate": {"kernels", "loadgen", "exporters", "stack", "correctness", "dashboards"},
}


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Absolute names of all modules a source file imports, wherever in the file: also for type checking only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # one dot is the package itself, each further one its parent
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = [node.module] if node.module else []
            yield from (".".join([*base, *module, alias.name]) for alias in node.names)


def portions_imported(source: str, package: str) -> set[str]:
    names = (module.split(".") for module in imported_modules(source, package))
    return {parts[1] for parts in names if parts[0] == "pdwatch" and len(parts) > 1}


def package_of(module: Path, root: Path) -> str:
    """``<root>/stack/pdwatch/stack/embedded/engine.py`` lies in ``pdwatch.stack.embedded``."""
    return ".".join(module.relative_to(root).parts[1:-1])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("import pdwatch.gate.cli", {"gate"}, id="import"),
        pytest.param("from pdwatch.gate import cli", {"gate"}, id="from_portion"),
        pytest.param("from pdwatch import gate", {"gate"}, id="from_namespace"),
        pytest.param("from . import pool", {"stack"}, id="same_package"),
        pytest.param("from .pool import Pool", {"stack"}, id="same_package_module"),
        pytest.param("from ...gate import cli", {"gate"}, id="relative_across_portions"),
        pytest.param("def f():\n    from pdwatch.gate import cli", {"gate"}, id="inside_a_function"),
        pytest.param("if TYPE_CHECKING:\n    from pdwatch.gate import cli", {"gate"}, id="for_type_checking"),
        pytest.param("import os, pdwatcher.gate", set(), id="others"),
    ],
)
def test_the_finder_sees(source: str, expected: set[str]) -> None:
    assert portions_imported(source, "pdwatch.stack.embedded") == expected


def test_imports_go_one_way(root: Path, portion: str) -> None:
    allowed = ALLOWED[portion] | {portion}
    wrong = {
        f"{module.relative_to(root)} imports {', '.join(sorted(extra))}"
        for module in (root / portion).rglob("*.py")
        if (extra := portions_imported(module.read_text(encoding="utf-8"), package_of(module, root)) - allowed)
    }
    assert not wrong


def test_the_table_has_no_cycle() -> None:
    placed: set[str] = set()
    while len(placed) < len(ALLOWED):
        free = {name for name, needs in ALLOWED.items() if needs <= placed} - placed
        assert free, f"a cycle among {ALLOWED.keys() - placed}"
        placed |= free
    assert not any("gate" in needs for needs in ALLOWED.values())
