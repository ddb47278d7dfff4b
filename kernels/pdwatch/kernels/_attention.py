"""Sparse MLA over a shared latent head with a sliding window and a sink, eager PyTorch reference.

    p[h, s] = exp(scale * query[h] . latent[s]) / (exp(sink[h]) + sum_s' exp(scale * query[h] . latent[s']))
    out[h]  = sum_s p[h, s] * latent[s]
    lse[h]  = log sum_s exp(scale * query[h] . latent[s])          natural logarithm, without the sink

K and V are the same row. s runs over the selected positions and the last `window` positions, in one softmax; the sink
is a logit without a value. Source: DeepSeek-V4 (transformers modeling_deepseek_v4; FlashMLA's interface, `attn_sink`).
Rotary embedding is the caller's: `query` and `latent` come rotated and the output leaves rotated.

A row without any position has out = 0 and lse = -inf (SGLang's Triton convention; FlashMLA returns +inf).
"""

from __future__ import annotations

import torch
from torch import Tensor


def sparse_mla_decode(
    query: Tensor,
    latent_pages: Tensor,
    block_table: Tensor,
    selected: Tensor,
    lengths: Tensor,
    sink: Tensor,
    window: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of one query token a row over a paged latent pool.

    query         [batch, heads, dim]     float
    latent_pages  [pages, page_size, dim] float, the pool of one layer, contiguous
    block_table   [batch, width]          integer page ids of the row
    selected      [batch, count]          integer positions older than the window, -1 (anywhere) = none
    lengths       [batch]                 integer, tokens of the row including the query's own
    sink          [heads]                 float; -inf = no sink

    Returns out [batch, heads, dim] and lse [batch, heads]. Accumulates in the dtype of the inputs.
    """
    pages, page_size, dim = latent_pages.shape
    batch = query.shape[0]
    recent = lengths[:, None] - torch.arange(1, window + 1, device=query.device)
    positions = torch.cat([selected, recent], dim=1)
    absent = positions < 0
    positions = positions.clamp(min=0)
    page = block_table.gather(1, torch.div(positions, page_size, rounding_mode="floor"))
    # the load is masked, not only the logit: 0 * NaN of a row that was never written is NaN.
    rows = (page * page_size + positions % page_size).masked_fill_(absent, 0)
    latent = latent_pages.view(pages * page_size, dim).index_select(0, rows.flatten()).view(batch, -1, dim)
    latent.masked_fill_(absent[:, :, None], 0.0)
    logits = torch.bmm(query, latent.transpose(1, 2)).mul_(scale).masked_fill_(absent[:, None], float("-inf"))
    return _attend(logits, latent, sink)


def sparse_mla_prefill(
    query: Tensor, latent: Tensor, selected: Tensor, lengths: Tensor, sink: Tensor, window: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of many query tokens of one sequence over its latent rows in order.

    query     [tokens, heads, dim]  float
    latent    [context, dim]        float, position s at row s
    selected  [tokens, count]       integer positions older than the window, -1 (anywhere) = none
    lengths   [tokens]              integer, position + 1 of each query token

    Returns out [tokens, heads, dim] and lse [tokens, heads]. Dense with a mask: the same numbers as
    `sparse_mla_decode` up to rounding.
    """
    tokens, context = query.shape[0], latent.shape[0]
    positions = torch.arange(context, device=query.device)
    last = lengths[:, None]
    allowed = torch.zeros(tokens, context + 1, dtype=torch.bool, device=query.device)
    allowed.scatter_(1, torch.where(selected < 0, context, selected), True)
    allowed = allowed[:, :context] | ((positions < last) & (positions >= last - window))
    bias = torch.where(allowed, 0.0, float("-inf")).to(query.dtype)
    logits = torch.matmul(query, latent.T).mul_(scale).add_(bias[:, None])
    return _attend(logits, latent, sink)


def _attend(logits: Tensor, latent: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse of logits [rows, heads, positions] over latent [positions, dim] or [rows, positions, dim]."""
    peak = logits.amax(dim=-1)
    weights = logits.softmax(dim=-1)
    # the largest weight is exp(peak - lse). softmax is by far the fastest masked exponential on a CPU.
    empty = peak == float("-inf")
    lse = (peak - weights.amax(dim=-1).log()).masked_fill_(empty, float("-inf"))
    # exp(lse) / (exp(lse) + exp(sink)) turns softmax weights into the weights with a sink.
    out = torch.matmul(weights, latent).mul_(torch.sigmoid(lse - sink)[..., None])
    return out.masked_fill_(empty[..., None], 0.0), lse
