"""Triton kernel of the embedded engine's indexer scores."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def score_kernel(
    query, keys, weights, table, scored, logits,
    width, table_stride, page_size,
    HEADS: tl.constexpr, PADDED_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr, PAGED: tl.constexpr,
):  # fmt: skip
    """One program for BLOCK positions of one row; -inf where a position is not scored."""
    row = tl.program_id(1).to(tl.int64)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = position < tl.minimum(tl.load(scored + row), width)
    head, dim = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED_DIM)
    slot = position.to(tl.int64)
    if PAGED:
        page = tl.load(table + row * table_stride + position // page_size, mask=exists, other=0).to(tl.int64)
        slot = page * page_size + position % page_size
    key = tl.load(keys + slot[:, None] * DIM + dim[None, :], mask=exists[:, None] & (dim < DIM)[None, :], other=0.0)
    q = tl.load(
        query + (row * HEADS + head[None, :]) * DIM + dim[:, None],
        mask=(head < HEADS)[None, :] & (dim < DIM)[:, None], other=0.0,
    )  # fmt: skip
    weight = tl.load(weights + row * HEADS + head, mask=head < HEADS, other=0.0)
    score = tl.maximum(tl.dot(key, q, input_precision="ieee"), 0.0)
    logit = tl.where(exists, tl.sum(score * weight[None, :], 1), float("-inf"))
    tl.store(logits + row * width + position, logit, mask=position < width)
