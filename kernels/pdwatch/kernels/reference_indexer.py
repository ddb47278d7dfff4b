"""Indexer logits over paged keys and the choice of positions in float64: what the fast kernels must equal.

    logits[b, t, s] = k_scale[s] * sum_h weights[b, t, h] * relu(query[b, t, h] . key[s])

Source: DeepSeek-V3.2-Exp, inference/model.py `Indexer` and kernel.py `fp8_index_kernel`. The scale of the query and the
factors of the heads are folded into `weights` by the caller. Everything is computed from the quantised bytes, so a
difference to a kernel is the kernel's arithmetic, not the quantisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pdwatch.kernels.layout_indexer import IndexKeyLayout, unpack_index_keys


def paged_indexer_logits_reference(
    query: Tensor,
    key_pages: Tensor,
    weights: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    layout: IndexKeyLayout,
    page_size: int,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Scores of every key of every row; arguments as in `triton_indexer.paged_indexer_logits`.

    Returns [batch * query_tokens, width * page_size] of `dtype`, NaN at positions >= length, which have no score.
    """
    batch, query_tokens = query.shape[:2]
    width = block_table.shape[1]
    lengths = row_lengths(lengths, batch, query_tokens)
    logits = torch.full((batch, query_tokens, width * page_size), float("nan"), dtype=dtype, device=query.device)
    for row in range(batch):
        longest = int(lengths[row].max())
        if longest == 0:
            continue
        pages = block_table[row, : (longest + page_size - 1) // page_size].long()
        values, scales = unpack_index_keys(key_pages[pages], layout, page_size, dtype)
        keys, scale = values.flatten(0, 1)[:longest], scales.flatten()[:longest]
        # float32 is exact for both 8-bit and bfloat16 values; PyTorch has no direct way from 8 bits to float64.
        scores = torch.matmul(query[row].float().to(dtype), keys.T).relu_()
        row_logits = (weights[row].to(dtype)[:, :, None] * scores).sum(dim=1) * scale
        for token in range(query_tokens):
            length = int(lengths[row, token])
            logits[row, token, :length] = row_logits[token, :length]
    return logits.flatten(0, 1)


def logits_tolerance(
    query: Tensor,
    key_pages: Tensor,
    weights: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    layout: IndexKeyLayout,
    page_size: int,
) -> Tensor:
    """How far from the reference a correct kernel may be, for each logit: an absolute bound of the same shape.

    The bound is a multiple of S = k_scale * sum_h |weight[h]| * sum_d |query[h, d] * key[d]|, the sum of magnitudes,
    because cancellation makes a bound relative to the logit itself meaningless.
    - Hopper's 8-bit tensor cores align the products of one instruction (32 wide) to the largest and keep 13 bits below
      it, truncating: 2**-13 for each of the 4 instructions of 128 dimensions, and as much again for the accumulator.
      DeepGEMM has the same error.
    - bfloat16 and other units accumulate in fp32: 2**-24 for each of 128 + 64 sequential additions, 2**-16 in all.
    """
    absolute = paged_indexer_logits_reference(
        query.float().abs(),
        _magnitudes(key_pages, layout, page_size),
        weights.abs(),
        block_table,
        lengths,
        layout=layout,
        page_size=page_size,
    )
    return absolute * (2.0**-10 if layout is IndexKeyLayout.FP8 else 2.0**-16)


def topk_reference(logits: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The `count` best positions below each row's length, by a stable sort in float64.

    logits   [rows, width]; what lies at or past a length is never looked at
    lengths  [rows] or anything that flattens to it

    Order: higher logit first, of equal logits (+0.0 == -0.0) the lower position; NaN comes after every number, -inf
    included. Returns int32 [rows, count]: the chosen positions ascending, then -1.
    """
    rows = logits.shape[0]
    chosen = torch.full((rows, count), -1, dtype=torch.int32, device=logits.device)
    for row, length in enumerate(lengths.flatten().tolist()):
        values = logits[row, :length].double()
        unordered = values.isnan()
        # two stable sorts: by value, then numbers before NaN.
        order = values.masked_fill(unordered, float("-inf")).sort(descending=True, stable=True).indices
        order = order[unordered[order].int().sort(stable=True).indices]
        best = order[:count].sort().values
        chosen[row, : best.numel()] = best.int()
    return chosen


def row_lengths(lengths: Tensor, batch: int, query_tokens: int) -> Tensor:
    """Lengths as [batch, query_tokens], whichever of the two allowed shapes they have."""
    return lengths.view(batch, -1).expand(batch, query_tokens)


def _magnitudes(key_pages: Tensor, layout: IndexKeyLayout, page_size: int) -> Tensor:
    """The same pages with every value and scale made positive."""
    if layout is IndexKeyLayout.BF16:
        return key_pages.abs()
    # the sign is the top bit of each value byte and of the last byte of each little-endian fp32 scale.
    positive = key_pages.clone()
    positive &= 0x7F
    values_end = page_size * 128
    scales = key_pages[:, values_end:].clone()
    scales[:, 3::4] &= 0x7F
    positive[:, values_end:] = scales
    return positive
