"""Kernels of others: ten lines, an entry point, and what happens when it is broken."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import torch

from pdwatch.kernels.harness import (
    KernelUnderTest,
    Outcome,
    Tolerance,
    UnknownKernel,
    UnknownName,
    catalogue,
    run_checks,
)

# the lines of the documentation
TEN_LINES = """
import torch
from pdwatch.kernels.harness import Tolerance, custom

def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

KERNEL = custom(
    "my_rms_norm", run=rms_norm, reference=rms_norm, batched=["x"], operators_only=True,
    inputs=lambda rows, generator: {"x": torch.randn(rows, 64, generator=generator), "weight": torch.ones(64) * 2},
    tolerance=Tolerance("a mean of 64 squares and three products in fp32", ulps=8),
)
"""
BROKEN = TEN_LINES.replace("return x *", "return x[:1] *").replace("my_rms_norm", "broken_rms_norm")
BROKEN = BROKEN.replace("reference=rms_norm", "reference=lambda x, weight: rms_norm(x, weight) * 0 + x")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """A module of the given source, importable as `my_kernels`."""

    def make(source: str) -> EntryPoint:
        made = ModuleType("my_kernels")
        exec(source, made.__dict__)
        monkeypatch.setitem(sys.modules, "my_kernels", made)
        return EntryPoint("mine", "my_kernels:KERNEL", "pdwatch.kernels")

    return make


def test_ten_lines_put_a_kernel_under_the_harness(module) -> None:
    assert len(TEN_LINES.strip().splitlines()) <= 12
    known = catalogue([module(TEN_LINES)]).named(["my_rms_norm"])
    report = run_checks(known, "cpu", seeds=3)
    by_name = {result.check: result for result in report.results}
    assert [result.words for result in report.results if result.outcome is Outcome.FAIL] == []
    for name in ("numerics", "odd_sizes", "poison", "batch_invariance", "determinism", "capture", "replay", "kept"):
        assert by_name[name].outcome is Outcome.PASS, by_name[name]
    assert by_name["stream_order"].detail == "needs CUDA"
    # a check that could not run is no pass
    assert report.exit_code == 2


def test_a_wrong_kernel_of_others_fails(module) -> None:
    report = run_checks(catalogue([module(BROKEN)]).named(["broken_rms_norm"]), "cpu")
    assert report.exit_code == 1
    assert {"numerics", "odd_sizes"} <= {result.check for result in report.results if result.outcome is Outcome.FAIL}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param("no_such_module_of_anybody:KERNEL", "cannot be imported here", id="no-module"),
        pytest.param("my_kernels:NOTHING", "AttributeError", id="no-attribute"),
        pytest.param("my_kernels:raises", "RuntimeError: on purpose", id="raises"),
        pytest.param("my_kernels:NUMBER", "TypeError", id="not-a-kernel"),
    ],
)
def test_a_broken_entry_point_is_told_by_its_name(module, value: str, words: str) -> None:
    module("NUMBER = [3]\ndef raises():\n    raise RuntimeError('on purpose')")
    known = catalogue([EntryPoint("theirs", value, "pdwatch.kernels")])
    entry = next(entry for entry in known.entries if entry.name == "theirs")
    assert entry.kernel is None
    assert words in entry.problem
    # the others are still there, and the broken one is not passed over in silence
    assert any(entry.kernel is not None for entry in known.entries)
    report = run_checks(known.named(["theirs"]), "cpu")
    assert report.exit_code == 2
    assert words in report.results[0].detail


def test_a_name_that_is_taken_is_told(module) -> None:
    point = module(TEN_LINES.replace("my_rms_norm", "eager.select_topk"))
    entry = next(entry for entry in catalogue([point]).entries if entry.problem and "taken" in entry.problem)
    assert "rename it" in entry.problem


def test_unknown_names_are_refused() -> None:
    known = catalogue([])
    with pytest.raises(UnknownKernel, match="`nobody` is not registered"):
        known.named(["nobody"])
    with pytest.raises(UnknownName, match="check `nothing` does not exist"):
        run_checks(known.named(["eager.*"]), "cpu", only=["nothing"])
    with pytest.raises(UnknownName, match="device `tpu`"):
        run_checks(known.named(["eager.*"]), "tpu")


def test_a_star_names_all_that_begin_so() -> None:
    names = [entry.name for entry in catalogue([]).named(["eager.*"]).entries]
    assert names == ["eager.sparse_mla_decode", "eager.indexer_logits", "eager.select_topk"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(UnknownName, match="no CUDA GPU here"):
        run_checks(catalogue([]).named(["eager.*"]), "cuda")


def test_a_kernel_for_another_device_is_not_run(module) -> None:
    point = module(TEN_LINES.replace("operators_only=True", 'devices=("cuda",)'))
    report = run_checks(catalogue([point]).named(["my_rms_norm"]), "cpu")
    assert {result.detail for result in report.results if result.outcome is Outcome.NOT_RUN} == {"needs CUDA"}
    assert report.count(Outcome.PASS) == 0


def test_a_kernel_that_raises_fails_where_it_raises(module) -> None:
    point = module(TEN_LINES.replace("return x *", "raise RuntimeError('boom') or x *"))
    report = run_checks(catalogue([point]).named(["my_rms_norm"]), "cpu", only=["numerics"])
    (result,) = report.results
    assert result.outcome is Outcome.FAIL
    assert "RuntimeError: boom in rms_norm (line" in result.detail


def test_a_kernel_needs_a_name_and_a_tolerance() -> None:
    def run(inputs, buffers):
        return {}

    with pytest.raises(ValueError, match="without a name"):
        KernelUnderTest(name=" ", family="custom", run=run, reference=run, cases=run)  # type: ignore[arg-type]  # refused before it is called
    with pytest.raises(ValueError, match="has no tolerance"):
        KernelUnderTest(name="x", family="custom", run=run, reference=run, cases=run)  # type: ignore[arg-type]  # refused before it is called
    assert Tolerance("because", ulps=1).ulps == 1
