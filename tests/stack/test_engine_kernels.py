"""The engine reaches attention and indexer through the kernel table alone, and only where the table runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdwatch.kernels import KernelTable, _table, kernel_table
from pdwatch.stack.embedded import checkpoint
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.engine import Engine
from pdwatch.stack.embedded.errors import ConfigurationError
from pdwatch.stack.embedded.request import Output, Request, SamplingParameters

WEIGHTS = Path(checkpoint.__file__).parent / "weights" / "tiny_toolcaller.safetensors"
KERNELS = ("indexer_logits", "indexer_logits_prefill", "select_topk", "sparse_mla_decode", "sparse_mla_prefill")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Calls by kernel of a table named `counted`: the eager functions, counted; and `elsewhere`, for CUDA alone."""
    counts = dict.fromkeys(KERNELS, 0)
    eager = kernel_table("eager")

    def counted(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            counts[name] += 1
            return getattr(eager, name)(*arguments)

        return call

    table: KernelTable = replace(eager, name="counted", **{name: counted(name) for name in KERNELS})
    monkeypatch.setitem(_table._TABLES, "counted", lambda: table)
    monkeypatch.setitem(_table._TABLES, "elsewhere", lambda: replace(table, name="elsewhere", devices=("cuda",)))
    return counts


def answer(kernels: str) -> list[int]:
    engine = Engine(EngineConfig(kernels=kernels, num_pages=64, max_running_requests=2), WEIGHTS)
    for number in range(2):
        prompt = [(7 * place + number) % 250 for place in range(300 + number)]
        engine.submit(Request(str(number), prompt, SamplingParameters(max_new_tokens=4, ignore_eos=True)))
    tokens = []
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output)
            tokens += output.new_token_ids
    return tokens


def test_a_table_of_another_name_answers_the_same(calls: dict[str, int]) -> None:
    expected = answer("eager")
    assert not any(calls.values())
    assert answer("counted") == expected
    # 4 layers; two prompts of 300 tokens are 2 blocks of 256 each; 4 tokens take 3 decode steps, the second request
    # begins a step later
    assert calls["sparse_mla_prefill"] == calls["indexer_logits_prefill"] == 4 * 2 * 2
    assert calls["sparse_mla_decode"] == calls["indexer_logits"] > 0
    assert calls["sparse_mla_decode"] % 4 == 0
    assert calls["select_topk"] == calls["indexer_logits"] + calls["indexer_logits_prefill"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kernels": "fast"}, "kernels `fast` do not exist, use one of: "),
        ({"kernels": "elsewhere"}, "kernels `elsewhere` run on cuda, device is cpu: change one of them"),
    ],
    ids=["unknown", "other-device"],
)
def test_kernels_that_cannot_run_are_refused(calls: dict[str, int], settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Engine(EngineConfig(**settings), WEIGHTS)
