"""`pdwatch kernels bench` as a command: what it hands on, and what it says where it cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pdwatch.gate.commands.kernels_bench import bench
from pdwatch.kernels.bench import command
from pdwatch.kernels.bench.errors import BenchArguments


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Calls of the benchmark, which measures nothing and misses a bar."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def run(families: Any, **options: Any) -> int:
        calls.append((families, options))
        return command.EXIT_MISSED

    monkeypatch.setattr(command, "bench", run)
    return calls


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(bench)
    return CliRunner().invoke(app, arguments)


def test_everything_is_measured_when_nothing_is_named(asked: list[tuple[Any, dict[str, Any]]]) -> None:
    assert invoke().exit_code == 1
    ((families, options),) = asked
    assert families == ()
    assert options == {
        "batches": (1, 4, 16, 64, 128, 256),
        "contexts": (2048, 4096, 32768, 131072, 524288, 1048576),
        "source": None,
        "json_file": None,
        "plot": None,
        "as_json": False,
        "quiet": False,
    }


def test_what_is_named_is_handed_on(asked: list[tuple[Any, dict[str, Any]]]) -> None:
    invoke("sparse_mla", "--batches", "1,64", "--contexts", "2K", "--from", "a.json", "--plot", "b.svg", "--json", "-q")
    ((families, options),) = asked
    assert families == ["sparse_mla"]
    assert (options["batches"], options["contexts"]) == ((1, 64), (2048,))
    assert (options["source"], options["plot"]) == (Path("a.json"), Path("b.svg"))
    assert (options["as_json"], options["quiet"]) == (True, True)


def test_a_list_that_is_none_is_refused(asked: list[tuple[Any, dict[str, Any]]]) -> None:
    result = invoke("--batches", "many")
    assert isinstance(result.exception, BenchArguments)
    assert asked == []
