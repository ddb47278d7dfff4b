"""Lightning indexer: scores of past positions, eager PyTorch reference.

    I[t, s] = sum_h weights[t, h] * relu(query[t, h] . key[s])

The ReLU is per head and before the weighted sum, so the heads cannot be folded into one query. Source:
DeepSeek-V3.2-Exp, inference/model.py `Indexer`; scale factors are the caller's, folded into `weights`. A position is
scored only if it lies beyond the sliding window of its query, which attends to the window anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor


def indexer_logits(
    query: Tensor, key_pages: Tensor, weights: Tensor, block_table: Tensor, lengths: Tensor, window: int
) -> Tensor:
    """Scores of one query token a row over paged keys.

    query        [batch, heads, dim]     float
    key_pages    [pages, page_size, dim] float, the pool of one layer, contiguous
    weights      [batch, heads]          float, may be negative
    block_table  [batch, width]          integer page ids; entries past a row's length are never read
    lengths      [batch]                 integer, tokens of the row including the query's own
    window       positions >= length - window are not scored

    Returns [batch, width * page_size], -inf where a position is not scored. Accumulates in the dtype of the inputs.
    """
    pages, page_size, dim = key_pages.shape
    batch, width = block_table.shape
    scored = (lengths - window)[:, None]
    page_start = torch.arange(0, width * page_size, page_size, device=query.device)
    # the load is masked, not only the score: what lies past the length may be another request's or not a page at all.
    table = block_table.masked_fill(page_start >= scored, 0)
    keys = key_pages.view(pages, page_size * dim).index_select(0, table.flatten()).view(batch, width * page_size, dim)
    scores = torch.bmm(query, keys.transpose(1, 2)).relu_()
    logits = torch.bmm(weights[:, None], scores).squeeze(1)
    positions = torch.arange(width * page_size, device=query.device)
    return logits.masked_fill_(positions >= scored, float("-inf"))


def indexer_logits_prefill(query: Tensor, key: Tensor, weights: Tensor, lengths: Tensor, window: int) -> Tensor:
    """Scores of many query tokens of one sequence over its keys in order.

    query    [tokens, heads, dim]  float
    key      [context, dim]        float, position s at row s
    weights  [tokens, heads]       float
    lengths  [tokens]              integer, position + 1 of each query token
    window   as in `indexer_logits`

    Returns [tokens, context], -inf where a position is not scored.
    """
    scores = torch.matmul(query, key.T).relu_()
    logits = torch.bmm(weights[:, None], scores).squeeze(1)
    positions = torch.arange(key.shape[0], device=query.device)
    return logits.masked_fill_(positions >= (lengths - window)[:, None], float("-inf"))
