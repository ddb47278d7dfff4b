"""The embedded engine's indexer kernels in Triton: the same functions as `_indexer` and `_topk`, float32 on a GPU.

Arguments, results and tie rule are those of `indexer_logits`, `indexer_logits_prefill` and `select_topk`. Products are
full fp32 (no tf32), so the numbers differ from the eager ones by the order of additions only.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.triton_indexer import device_scope
from pdwatch.kernels.triton_table_indexer_kernels import score_kernel
from pdwatch.kernels.triton_topk import topk_positions

BLOCK = 64


def indexer_logits(
    query: Tensor, key_pages: Tensor, weights: Tensor, block_table: Tensor, lengths: Tensor, window: int
) -> Tensor:
    """See `pdwatch.kernels.indexer_logits`. Raises KernelArguments if a tensor is not float32."""
    page_size = key_pages.shape[1]
    scored = (lengths - window).to(torch.int32)
    return _score(query, key_pages.flatten(0, 1), weights, block_table, page_size, scored)


def indexer_logits_prefill(query: Tensor, key: Tensor, weights: Tensor, lengths: Tensor, window: int) -> Tensor:
    """See `pdwatch.kernels.indexer_logits_prefill`. Raises KernelArguments if a tensor is not float32."""
    return _score(query, key, weights, None, key.shape[0], (lengths - window).to(torch.int32))


def select_topk(logits: Tensor, count: int) -> Tensor:
    """See `pdwatch.kernels.select_topk`; float32, at most 2048 of a row. Raises KernelArguments."""
    rows, width = logits.shape
    if width == 0:
        return logits.new_full((rows, count), -1, dtype=torch.int64)
    lengths = torch.full((rows,), width, dtype=torch.int32, device=logits.device)
    return topk_positions(logits, lengths, count, exclude_infinite=True).to(torch.int64)


def _score(
    query: Tensor, keys: Tensor, weights: Tensor, table: Tensor | None, page_size: int, scored: Tensor
) -> Tensor:
    """Logits [rows, width] of query [rows, heads, dim] over keys [slots, dim], in order or through a block table."""
    for name, tensor in (("query", query), ("keys", keys), ("weights", weights)):
        if tensor.dtype != torch.float32:
            raise KernelArguments(f"{name} are {tensor.dtype}, give torch.float32")
    rows, heads, dim = query.shape
    width = keys.shape[0] if table is None else table.shape[1] * page_size
    logits = query.new_empty(rows, width)
    if rows == 0 or width == 0:
        return logits
    query, keys, weights = query.contiguous(), keys.contiguous(), weights.contiguous()
    with device_scope(query.device):
        score_kernel[(triton.cdiv(width, BLOCK), rows)](
            query, keys, weights, scored if table is None else table, scored, logits,
            width, 0 if table is None else table.stride(0), page_size,
            HEADS=heads, PADDED_HEADS=max(16, triton.next_power_of_2(heads)),
            DIM=dim, PADDED_DIM=max(16, triton.next_power_of_2(dim)), BLOCK=BLOCK, PAGED=table is not None,
            num_warps=4,
        )  # fmt: skip
    return logits
