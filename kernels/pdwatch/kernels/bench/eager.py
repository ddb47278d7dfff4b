"""Sparse MLA and the indexer in plain PyTorch on the GPU, without kernels of their own: peers for timing, no more.

Both may be captured: no shape and no branch depends on a value. Nothing is masked before it is read, so what `indices`
or the table do not name must hold numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pdwatch.kernels.layout_indexer import INDEX_DIM
from pdwatch.kernels.layout_mla import VALUE_DIM, KvScope, MlaLayout


def eager_sparse_mla(query: Tensor, scopes: Sequence[KvScope], scale: float, sink: Tensor) -> Tensor:
    """Output [batch, query_tokens, heads, 512] of `query`: rows unpacked to bfloat16, then dense attention."""
    keys = torch.cat([_rows(scope) for scope in scopes], dim=2)
    absent = torch.cat([_absent(scope) for scope in scopes], dim=2)
    logits = torch.einsum("bqhd,bqnd->bqhn", query, keys).float().mul_(scale)
    logits.masked_fill_(absent[:, :, None], float("-inf"))
    total = torch.logaddexp(torch.logsumexp(logits, dim=-1), sink.expand(logits.shape[:3]))
    weights = torch.exp(logits - total[..., None]).to(query.dtype)
    return torch.einsum("bqhn,bqnd->bqhd", weights, keys[..., :VALUE_DIM])


def eager_indexer_topk(
    query: Tensor, key_pages: Tensor, weights: Tensor, block_table: Tensor, lengths: Tensor, count: int, page_size: int
) -> Tensor:
    """Positions [batch, count] of fp8 keys: all pages of the table gathered and scored, masked, torch.topk, -1."""
    batch, width = block_table.shape
    pages = key_pages[block_table.flatten().long()]
    values = pages[:, : page_size * INDEX_DIM].contiguous().view(torch.float8_e4m3fn).to(torch.bfloat16)
    scales = pages[:, page_size * INDEX_DIM :].contiguous().view(torch.float32).view(batch, width * page_size)
    keys = values.view(batch, width * page_size, INDEX_DIM)
    scores = torch.bmm(query[:, 0].to(torch.bfloat16), keys.transpose(1, 2)).relu_()
    logits = torch.bmm(weights.to(torch.bfloat16), scores)[:, 0].float() * scales
    positions = torch.arange(width * page_size, device=logits.device)
    logits.masked_fill_(positions >= lengths[:, None], float("-inf"))
    best = logits.topk(count, dim=-1)
    return best.indices.masked_fill(best.values == float("-inf"), -1)


def _rows(scope: KvScope) -> Tensor:
    """Rows [batch, query_tokens, count, dim] bfloat16 at the scope's indices."""
    size, pages = scope.page_size, scope.pages
    slots = scope.indices.clamp(min=0).long()
    page, offset = torch.div(slots, size, rounding_mode="floor"), slots % size
    if not scope.layout.is_fp8:
        return pages[page, offset]
    if scope.layout is MlaLayout.FP8_V4:
        row = pages[:, : size * 576].view(-1, size, 576)[page, offset]
        exponents = pages[:, size * 576 : size * 584].view(-1, size, 8)[page, offset][..., :7]
        values, rope = row[..., :448], row[..., 448:]
        scale = torch.exp2(exponents.to(torch.bfloat16) - 127)
    else:
        row = pages[:, : size * 656].view(-1, size, 656)[page, offset]
        values, rope = row[..., :512], row[..., 528:]
        scale = row[..., 512:528].contiguous().view(torch.float32).to(torch.bfloat16)
    unpacked = values.contiguous().view(torch.float8_e4m3fn).to(torch.bfloat16)
    nope = unpacked.view(*scale.shape, scope.layout.tile) * scale[..., None]
    return torch.cat([nope.flatten(-2), rope.contiguous().view(torch.bfloat16)], dim=-1)


def _absent(scope: KvScope) -> Tensor:
    absent = scope.indices < 0
    if scope.lengths is not None:
        places = torch.arange(scope.indices.shape[-1], device=absent.device)
        absent = absent | (places >= scope.lengths[:, None, None])
    return absent
