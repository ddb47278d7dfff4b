"""A plain per-head sparse MLA decode kernel in Triton: the peer that the tiled kernel is measured against.

One program a query head reads every KV row for itself, as kernels without tensor cores do: 64 times the KV traffic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_mla import VALUE_DIM, KvScope, MlaLayout


@triton.jit
def _scope(
    q, q_rope, peak, total, value, value_rope, pages, page_stride, indices, length, scale,
    PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, 512)
    rope_column = tl.arange(0, 64)
    nope = column < 448
    for start in tl.range(0, length, BLOCK_N):
        place = start + tl.arange(0, BLOCK_N)
        index = tl.load(indices + place, mask=place < length, other=-1)
        valid = index >= 0
        row = (index // PAGE).to(tl.int64) * page_stride
        offset = index % PAGE
        data = pages + row + offset * 576
        mask = valid[:, None] & nope[None, :]
        raw = tl.load(data[:, None] + column[None, :], mask=mask, other=0)
        scales = pages + row + PAGE * 576 + offset * 8
        exponent = tl.load(scales[:, None] + column[None, :] // 64, mask=mask, other=127).to(tl.int32)
        keys = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32) * (exponent << 23).to(tl.float32, bitcast=True)
        rope = (data + 448).to(tl.pointer_type(tl.bfloat16))[:, None] + rope_column[None, :]
        rope = tl.load(rope, mask=valid[:, None], other=0.0).to(tl.float32)
        score = (tl.sum(q[None, :] * keys, axis=1) + tl.sum(q_rope[None, :] * rope, axis=1)) * scale
        score = tl.where(valid, score, float("-inf"))
        next_peak = tl.maximum(peak, tl.max(score, axis=0))
        unit = tl.where(next_peak == float("-inf"), 0.0, next_peak)
        weight = tl.exp(score - unit)
        keep = tl.exp(peak - unit)
        total = total * keep + tl.sum(weight, axis=0)
        value = value * keep + tl.sum(weight[:, None] * keys, axis=0)
        value_rope = value_rope * keep + tl.sum(weight[:, None] * rope, axis=0)
        peak = next_peak
    return peak, total, value, value_rope


@triton.jit
def _per_head_kernel(
    query, out, sink, pages_0, page_stride_0, indices_0, count_0, pages_1, page_stride_1, indices_1, count_1, scale,
    PAGE_0: tl.constexpr, PAGE_1: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: [heads, rows]."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, 512)
    rope_column = tl.arange(0, 64)
    at = (row * tl.num_programs(0) + head) * 512
    q = tl.load(query + at + column, mask=column < 448, other=0.0).to(tl.float32)
    q_rope = tl.load(query + at + 448 + rope_column).to(tl.float32)
    peak, total = float("-inf"), 0.0
    value, value_rope = tl.zeros([512], tl.float32), tl.zeros([64], tl.float32)
    peak, total, value, value_rope = _scope(
        q, q_rope, peak, total, value, value_rope, pages_0, page_stride_0, indices_0 + row * count_0, count_0, scale,
        PAGE_0, BLOCK_N,
    )  # fmt: skip
    peak, total, value, value_rope = _scope(
        q, q_rope, peak, total, value, value_rope, pages_1, page_stride_1, indices_1 + row * count_1, count_1, scale,
        PAGE_1, BLOCK_N,
    )  # fmt: skip
    unit = tl.where(peak == float("-inf"), 0.0, peak)
    inverse = tl.where(total == 0.0, 0.0, 1.0 / (total + tl.exp(tl.load(sink + head) - unit)))
    tl.store(out + at + column, (value * inverse).to(out.dtype.element_ty), mask=column < 448)
    tl.store(out + at + 448 + rope_column, (value_rope * inverse).to(out.dtype.element_ty))


def sparse_mla_per_head(query: Tensor, scopes: Sequence[KvScope], scale: float, sink: Tensor) -> Tensor:
    """Output of `query` [batch, 1, heads, 512] over two fp8_v4 scopes without lengths; a peer for timing, no more."""
    first, second = scopes
    if any(scope.layout is not MlaLayout.FP8_V4 or scope.lengths is not None for scope in scopes):
        raise KernelArguments("the per-head peer takes two fp8_v4 scopes without lengths")
    batch, _, heads, _ = query.shape
    out = torch.empty(batch, 1, heads, VALUE_DIM, dtype=query.dtype, device=query.device)
    _per_head_kernel[(heads, batch)](
        query, out, sink, first.pages, first.pages.stride(0), first.indices, first.indices.shape[-1], second.pages,
        second.pages.stride(0), second.indices, second.indices.shape[-1], scale,
        PAGE_0=first.page_size, PAGE_1=second.page_size, BLOCK_N=16, num_warps=4,
    )  # fmt: skip
    return out
