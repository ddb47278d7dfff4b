"""Sparse MLA decode over cache rows as they lie in memory: eager PyTorch, float64 by default.

    s[h, i]  = scale * query[h] . key[i]           i over the rows of all scopes, in one softmax
    lse[h]   = log sum_i exp(s[h, i])              natural logarithm, without the sink
    out[h]   = sum_i exp(s[h, i]) * value[i] / (exp(lse[h]) + exp(sink[h]))

value[i] is the first 512 columns of the row. A query without any row has out = 0 and lse = -inf. A row that `indices`
names twice counts twice. Source: FlashMLA, `flash_mla_with_kvcache` (which returns lse = +inf for no row).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pdwatch.kernels.layout_mla import VALUE_DIM, KvScope, take_mla_rows


def sparse_mla_reference(
    query: Tensor,
    scopes: Sequence[KvScope],
    scale: float,
    sink: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Output and lse of `query` over the rows of `scopes`, from the same quantised bytes as the kernels read.

    query  [batch, query_tokens, heads, dim] float
    sink   [heads] float or None; -inf is no sink, +inf makes out 0

    Returns out [batch, query_tokens, heads, 512] and lse [batch, query_tokens, heads] in `dtype`.
    """
    rows, present = [], []
    for scope in scopes:
        kept = scope.indices >= 0
        if scope.lengths is not None:
            places = torch.arange(scope.indices.shape[-1], device=query.device)
            kept = kept & (places < scope.lengths[:, None, None])
        slots = scope.indices.masked_fill(~kept, 0).long()
        # the load is masked, not only the logit: slot 0 may hold NaN, and 0 * NaN is NaN.
        taken = scope.pages.new_zeros(*slots.shape, scope.layout.dim, dtype=dtype)
        taken[kept] = take_mla_rows(scope.pages, scope.layout, scope.page_size, slots[kept], dtype)
        rows.append(taken)
        present.append(kept)
    keys, kept = torch.cat(rows, dim=2), torch.cat(present, dim=2)
    logits = torch.einsum("bqhd,bqid->bqhi", query.to(dtype), keys).mul_(scale)
    logits.masked_fill_(~kept[:, :, None], float("-inf"))
    lse = torch.logsumexp(logits, dim=-1)
    empty = ~kept.any(dim=-1)
    lse.masked_fill_(empty[..., None], float("-inf"))
    total = lse if sink is None else torch.logaddexp(lse, sink.to(dtype).expand_as(lse))
    weights = torch.exp(logits - total[..., None]).masked_fill_(empty[..., None, None], 0.0)
    return torch.einsum("bqhi,bqid->bqhd", weights, keys[..., :VALUE_DIM]), lse
