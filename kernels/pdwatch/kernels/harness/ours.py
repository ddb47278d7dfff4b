"""The kernels of this project, put under the harness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pdwatch.kernels import kernel_table
from pdwatch.kernels.harness.families.embedded import embedded_kernels
from pdwatch.kernels.harness.families.indexer import indexer_choice_kernel, indexer_kernel
from pdwatch.kernels.harness.families.sparse_mla import scopes_of, sparse_mla_kernel
from pdwatch.kernels.harness.families.topk import topk_kernel
from pdwatch.kernels.harness.kernel import ALL_PROMISES, Buffers, Inputs, KernelUnderTest, Outputs, Promise

MLA_LAYOUTS = ("fp8_v4", "bf16_v4", "fp8_v32", "bf16_v32")
KEY_LAYOUTS = ("fp8_132", "bf16")


def eager_table() -> list[KernelUnderTest]:
    """The references that the embedded engine runs on a CPU."""
    # PyTorch's matrix products choose their kernel by shape, so the last bit may follow the batch
    return embedded_kernels(kernel_table("eager"), ALL_PROMISES - {Promise.WORK_BY_LENGTH, Promise.BATCH_INVARIANT})


def triton_table() -> list[KernelUnderTest]:
    """The same signatures in Triton."""
    import triton  # noqa: F401  # says what is missing before the table does

    promises = ALL_PROMISES - {Promise.WORK_BY_LENGTH}
    return embedded_kernels(kernel_table("triton"), promises, operators_only=False)


def sparse_mla_of(layout: str) -> KernelUnderTest:
    """The production sparse MLA kernel of one layout."""
    from pdwatch.kernels.layout_mla import KvScope, MlaLayout
    from pdwatch.kernels.reference_mla import sparse_mla_reference
    from pdwatch.kernels.triton_mla import sparse_mla, sparse_mla_workspace

    def scopes(inputs: Inputs) -> list[KvScope]:
        return [
            KvScope(
                pages=inputs[f"{scope}_pages"],
                layout=MlaLayout(inputs["layout"]),
                page_size=inputs[f"{scope}_page_size"],
                indices=inputs[f"{scope}_indices"],
                lengths=inputs[f"{scope}_lengths"],
            )
            for scope in scopes_of(inputs)
        ]

    def run(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        given: dict[str, Any] = {}
        if buffers is not None:
            given = {"out": buffers.outputs["out"], "lse": buffers.outputs["lse"], "workspace": buffers.workspace}
        out, lse = sparse_mla(inputs["query"], scopes(inputs), inputs["scale"], inputs["sink"], **given)
        return {"out": out, "lse": lse}

    def second(inputs: Inputs) -> Outputs:
        out, lse = sparse_mla_reference(inputs["query"], scopes(inputs), inputs["scale"], inputs["sink"])
        return {"out": out, "lse": lse}

    def buffers_for(inputs: Inputs) -> Buffers:
        query = inputs["query"]
        batch, tokens, heads = query.shape[:3]
        counts = [inputs[f"{scope}_indices"].shape[-1] for scope in scopes_of(inputs)]
        outputs = {
            "out": query.new_empty((*query.shape[:3], 512)),
            "lse": query.new_empty(query.shape[:3], dtype=torch.float32),
        }
        return Buffers(outputs, sparse_mla_workspace(batch, tokens, heads, counts, query.device))

    return sparse_mla_kernel(
        f"sparse_mla.{layout}",
        layout,
        run,
        heads=(64, 16) if torch.cuda.is_available() else (16, 8),
        buffers=buffers_for,
        second_reference=second,
        invalid=_invalid_mla,
    )


def indexer_of(layout: str) -> KernelUnderTest:
    """The production indexer of one layout."""
    from pdwatch.kernels.layout_indexer import IndexKeyLayout
    from pdwatch.kernels.reference_indexer import paged_indexer_logits_reference
    from pdwatch.kernels.triton_indexer import paged_indexer_logits

    def arguments(inputs: Inputs) -> dict[str, Any]:
        names = ("query", "key_pages", "weights", "block_table", "lengths", "page_size")
        return {**{name: inputs[name] for name in names}, "layout": IndexKeyLayout(inputs["layout"])}

    def shaped(logits: torch.Tensor, inputs: Inputs) -> Outputs:
        return {"logits": logits.view(*inputs["query"].shape[:2], -1)}

    def run(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        out = None if buffers is None else buffers.outputs["logits"].flatten(0, 1)
        return shaped(paged_indexer_logits(**arguments(inputs), out=out), inputs)

    def second(inputs: Inputs) -> Outputs:
        return shaped(paged_indexer_logits_reference(**arguments(inputs)), inputs)

    def buffers_for(inputs: Inputs) -> Buffers:
        shape = (*inputs["query"].shape[:2], inputs["maximum"])
        return Buffers({"logits": torch.empty(shape, dtype=torch.float32, device=inputs["query"].device)})

    return indexer_kernel(
        f"indexer_logits.{layout}",
        layout,
        run,
        page_sizes=(64, 16),
        buffers=buffers_for,
        second_reference=second,
        invalid=_invalid_indexer,
    )


def topk() -> KernelUnderTest:
    """The production top-k."""
    from pdwatch.kernels.reference_indexer import topk_reference
    from pdwatch.kernels.triton_indexer import indexer_workspace
    from pdwatch.kernels.triton_topk import topk_positions

    def run(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        given: dict[str, Any] = {}
        if buffers is not None:
            given = {"out": buffers.outputs["positions"], "workspace": buffers.workspace}
        return {"positions": topk_positions(inputs["logits"], inputs["lengths"], inputs["count"], **given)}

    def second(inputs: Inputs) -> Outputs:
        return {"positions": topk_reference(inputs["logits"], inputs["lengths"], inputs["count"])}

    def buffers_for(inputs: Inputs) -> Buffers:
        rows, width = inputs["logits"].shape
        device = inputs["logits"].device
        positions = torch.empty(rows, inputs["count"], dtype=torch.int32, device=device)
        return Buffers({"positions": positions}, indexer_workspace(rows, 1, width, device, logits=False))

    return topk_kernel("topk", run, buffers=buffers_for, second_reference=second, invalid=_invalid_topk)


def indexer_topk_of(layout: str) -> KernelUnderTest:
    """The production indexer and top-k in one call, with one workspace."""
    from pdwatch.kernels.layout_indexer import IndexKeyLayout
    from pdwatch.kernels.triton_indexer import indexer_workspace
    from pdwatch.kernels.triton_topk import indexer_topk

    def run(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        given: dict[str, Any] = {}
        if buffers is not None:
            given = {"out": buffers.outputs["positions"].flatten(0, 1), "workspace": buffers.workspace}
        names = ("query", "key_pages", "weights", "block_table", "lengths", "count", "page_size")
        arguments = {name: inputs[name] for name in names}
        positions = indexer_topk(**arguments, layout=IndexKeyLayout(inputs["layout"]), **given)
        return {"positions": positions.view(*inputs["query"].shape[:2], -1)}

    def buffers_for(inputs: Inputs) -> Buffers:
        batch, tokens = inputs["query"].shape[:2]
        device = inputs["query"].device
        positions = torch.empty(batch, tokens, inputs["count"], dtype=torch.int32, device=device)
        return Buffers({"positions": positions}, indexer_workspace(batch, tokens, inputs["maximum"], device))

    return indexer_choice_kernel(f"indexer_topk.{layout}", layout, run, page_sizes=(64, 16), buffers=buffers_for)


def _invalid_mla(inputs: Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
    query, pages, indices = inputs["query"], inputs["window_pages"], inputs["window_indices"]
    yield "query of float32", {**inputs, "query": query.float()}
    yield "query without its last dimension", {**inputs, "query": query[..., :-1]}
    yield "indices of int64", {**inputs, "window_indices": indices.long()}
    yield "indices of another batch", {**inputs, "window_indices": indices[:1].expand(len(query) + 1, -1, -1)}
    yield "pages of another dtype", {**inputs, "window_pages": pages.to(torch.float32)}
    yield "lengths of another batch", {**inputs, "window_lengths": inputs["window_lengths"][:1].expand(len(query) + 1)}
    yield "sinks of another number of heads", {**inputs, "sink": inputs["sink"][:-1]}


def _invalid_indexer(inputs: Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
    query = inputs["query"]
    yield "query of float32", {**inputs, "query": query.float()}
    yield "query without its last dimension", {**inputs, "query": query[..., :-1]}
    yield "weights of bfloat16", {**inputs, "weights": inputs["weights"].to(torch.bfloat16)}
    yield "a table of int64", {**inputs, "block_table": inputs["block_table"].long()}
    yield "a table of another batch", {**inputs, "block_table": inputs["block_table"][:-1]}
    yield "lengths of another batch", {**inputs, "lengths": inputs["lengths"][:-1]}
    yield "pages of another dtype", {**inputs, "key_pages": inputs["key_pages"].to(torch.int32)}


def _invalid_topk(inputs: Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "logits of bfloat16", {**inputs, "logits": inputs["logits"].to(torch.bfloat16)}
    yield "logits in columns", {**inputs, "logits": inputs["logits"].T.contiguous().T}
    yield "lengths of another number of rows", {**inputs, "lengths": inputs["lengths"][:-1]}
    yield "a count of 0", {**inputs, "count": 0}
