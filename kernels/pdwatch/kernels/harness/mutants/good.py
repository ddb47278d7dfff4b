"""The right kernels that mutants are made from, put under the harness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pdwatch.kernels.harness.families.indexer import indexer_kernel
from pdwatch.kernels.harness.families.sparse_mla import sparse_mla_kernel
from pdwatch.kernels.harness.families.topk import topk_kernel
from pdwatch.kernels.harness.kernel import ALL_PROMISES, Inputs, KernelUnderTest, Promise
from pdwatch.kernels.harness.mutants.indexer import EagerIndexer
from pdwatch.kernels.harness.mutants.mla import EagerSparseMla
from pdwatch.kernels.harness.mutants.topk import EagerTopk

# operators allocate, and work over the whole table
PROMISES = ALL_PROMISES - {Promise.WORK_BY_LENGTH, Promise.ALLOCATES_NOTHING}


def mla_under_test(kernel: EagerSparseMla, name: str = "mutants.sparse_mla") -> KernelUnderTest:
    made = sparse_mla_kernel(
        name,
        kernel.layout,
        kernel.run,
        heads=(4, 2),
        buffers=kernel.buffers,
        invalid=_invalid_mla,
        promises=PROMISES,
        operators_only=True,
    )
    return replace(made, timing=None)


def indexer_under_test(kernel: EagerIndexer, name: str = "mutants.indexer_logits") -> KernelUnderTest:
    made = indexer_kernel(
        name,
        kernel.layout,
        kernel.run,
        heads=(4, 3),
        page_sizes=(64, 5),
        buffers=kernel.buffers,
        invalid=_invalid_indexer,
        promises=PROMISES,
        operators_only=True,
    )
    return replace(made, timing=None)


def topk_under_test(kernel: EagerTopk, name: str = "mutants.topk") -> KernelUnderTest:
    made = topk_kernel(
        name, kernel.run, buffers=kernel.buffers, invalid=_invalid_topk, promises=PROMISES, operators_only=True
    )
    return replace(made, timing=None)


def good_kernels() -> list[KernelUnderTest]:
    return [mla_under_test(EagerSparseMla()), indexer_under_test(EagerIndexer()), topk_under_test(EagerTopk())]


def _invalid_mla(inputs: Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "query of float32", {**inputs, "query": inputs["query"].float()}
    yield "indices of int64", {**inputs, "window_indices": inputs["window_indices"].long()}


def _invalid_indexer(inputs: Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "weights of bfloat16", {**inputs, "weights": inputs["weights"].to(torch.bfloat16)}
    yield "a table of int64", {**inputs, "block_table": inputs["block_table"].long()}


def _invalid_topk(inputs: Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "logits of bfloat16", {**inputs, "logits": inputs["logits"].to(torch.bfloat16)}
    yield "lengths of another number of rows", {**inputs, "lengths": inputs["lengths"][:-1]}
