"""FlashMLA and DeepGEMM under the harness. Imported only when asked for; they need an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pdwatch.kernels.harness.families.indexer import indexer_kernel
from pdwatch.kernels.harness.families.mla_cases import one_scope_only
from pdwatch.kernels.harness.families.sparse_mla import scopes_of, sparse_mla_kernel
from pdwatch.kernels.harness.kernel import Buffers, Case, CaseMaker, Inputs, KernelUnderTest, Outputs, Promise

_SCOPE_NAMES = {
    "window": ("k_cache", "indices", "topk_length"),
    "indexed": ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"),
}
# FlashMLA splits by batch, and its schedule may be reused only for lengths of the same values
_FLASHMLA = frozenset({Promise.CAPTURABLE})
# positions past a length hold garbage; results lie in memory of its own
_DEEPGEMM = frozenset({Promise.DETERMINISTIC, Promise.CAPTURABLE, Promise.BATCH_INVARIANT})


def flashmla() -> list[KernelUnderTest]:
    """Sparse decode of FlashMLA over packed fp8 pages, V4 and V3.2, with a fresh schedule for each call."""
    import flash_mla

    def run(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        named: dict[str, Any] = {}
        for scope in scopes_of(inputs):
            page_size = inputs[f"{scope}_page_size"]
            pages = inputs[f"{scope}_pages"]
            width = 584 if inputs["layout"] == "fp8_v4" else 656
            cache = pages[:, : page_size * width].view(torch.float8_e4m3fn)
            cache = cache.as_strided((len(pages), page_size, 1, width), (pages.stride(0), width, width, 1))
            # FlashMLA takes indices in blocks of 64
            indices = inputs[f"{scope}_indices"]
            indices = torch.nn.functional.pad(indices, (0, -indices.shape[-1] % 64), value=-1)
            for name, value in zip(_SCOPE_NAMES[scope], (cache, indices, inputs[f"{scope}_lengths"]), strict=True):
                named[name] = value
        schedule, _ = flash_mla.get_mla_metadata()
        out, lse = flash_mla.flash_mla_with_kvcache(
            q=inputs["query"],
            block_table=None,
            cache_seqlens=None,
            head_dim_v=512,
            tile_scheduler_metadata=schedule,
            softmax_scale=inputs["scale"],
            is_fp8_kvcache=True,
            attn_sink=inputs["sink"],
            **named,
        )
        # FlashMLA says +inf for a row without keys, and has the heads before the query tokens
        lse = lse.transpose(1, 2)
        return {"out": out, "lse": torch.where(lse == float("inf"), float("-inf"), lse)}

    v4, v32 = (
        sparse_mla_kernel(f"flashmla.{layout}", layout, run, heads=(64,), promises=_FLASHMLA, devices=("cuda",))
        for layout in ("fp8_v4", "fp8_v32")
    )
    # for V3.2 it takes neither a second scope nor lengths; the case of the int64 check has lengths
    return [v4, replace(v32, cases=partial(_one_scope, v32.cases), replays=None, huge=None)]


def _one_scope(cases: CaseMaker, seed: int, device: torch.device) -> Iterator[Case]:
    return map(one_scope_only, cases(seed, device))


def deepgemm() -> list[KernelUnderTest]:
    """Paged logits of DeepGEMM over packed fp8 pages, with its schedule computed in each call."""
    import deep_gemm

    def run(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        query, pages = inputs["query"], inputs["key_pages"]
        batch, tokens, heads, _ = query.shape
        cache = pages.as_strided((len(pages), inputs["page_size"], 1, 132), (pages.stride(0), 132, 132, 1))
        lengths = inputs["lengths"].contiguous()
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, inputs["page_size"], deep_gemm.get_num_sms())
        weights = inputs["weights"].reshape(batch * tokens, heads)
        table, maximum = inputs["block_table"], inputs["maximum"]
        logits = deep_gemm.fp8_paged_mqa_logits(query, cache, weights, lengths, table, schedule, maximum, False)
        return {"logits": logits.view(batch, tokens, -1)[..., :maximum]}

    return [
        indexer_kernel(
            "deepgemm.indexer_logits", "fp8_132", run, page_sizes=(64,), promises=_DEEPGEMM, devices=("cuda",)
        )
    ]
