"""Which kernel tables there are, and what is told where one cannot run."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from pdwatch.kernels import KernelsUnavailable, KernelTable, UnknownKernels, _table, kernel_table

KERNELS = (
    "indexer_logits",
    "indexer_logits_prefill",
    "select_topk",
    "sparse_mla_decode",
    "sparse_mla_prefill",
)


@pytest.fixture(autouse=True)
def tables_are_made_anew() -> None:
    _table._triton.cache_clear()


def stand_in(monkeypatch: pytest.MonkeyPatch, interpreted: bool) -> None:
    """Triton and its tables, where neither may be installed."""
    triton = ModuleType("triton")
    triton.knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=interpreted))  # type: ignore[attr-defined]  # a module made up
    modules = {"triton": triton}
    for name in ("triton_table_indexer", "triton_table_mla"):
        module = ModuleType(f"pdwatch.kernels.{name}")
        for kernel in KERNELS:
            setattr(module, kernel, f"{name}.{kernel}")
        modules[module.__name__] = module
        monkeypatch.delattr(sys.modules["pdwatch.kernels"], name, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_an_unknown_table_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownKernels, match="kernels `fast` do not exist, use one of: eager, triton"):
        kernel_table("fast")


def test_triton_is_loaded_only_when_asked_for() -> None:
    code = "import sys, pdwatch.kernels as k; k.kernel_table('eager'); sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_without_triton_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # None makes an import fail
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(
        KernelsUnavailable, match=r"need Triton, which cannot be imported here .*: install it, or use `"
    ):
        kernel_table("triton")


@pytest.mark.parametrize("interpreted", [False, True], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("gpu", [False, True], ids=["no-gpu", "gpu"])
def test_triton_runs_on_a_gpu_or_interpreted(interpreted: bool, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, interpreted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    if not gpu and not interpreted:
        with pytest.raises(KernelsUnavailable, match=r"need a GPU, and PyTorch sees none here: use `eager`, or set"):
            kernel_table("triton")
        return
    table = kernel_table("triton")
    assert table == KernelTable(
        name="triton",
        indexer_logits="triton_table_indexer.indexer_logits",  # type: ignore[arg-type]  # a stand-in
        indexer_logits_prefill="triton_table_indexer.indexer_logits_prefill",  # type: ignore[arg-type]  # a stand-in
        select_topk="triton_table_indexer.select_topk",  # type: ignore[arg-type]  # a stand-in
        sparse_mla_decode="triton_table_mla.sparse_mla_decode",  # type: ignore[arg-type]  # a stand-in
        sparse_mla_prefill="triton_table_mla.sparse_mla_prefill",  # type: ignore[arg-type]  # a stand-in
        devices=("cpu",) if interpreted else ("cuda",),
    )
    _table._triton.cache_clear()
