"""Sparse MLA of the embedded engine in Triton: `sparse_mla_decode` and `sparse_mla_prefill` with their signatures.

For the engine's small float32 pools, where any head count and dimension must do; production shapes and cache layouts
are `triton_mla`'s. Products are full float32 (no tf32), so results equal the eager reference's up to rounding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments


@triton.jit
def _table_mla_kernel(
    query, latent, block_table, selected, lengths, sink, out, lse, scale, heads, dim, table_stride, count, window,
    PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: [rows, head blocks]. A row attends to `count` selected and the last `window` positions. PAGE 0: unpaged."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    column = tl.arange(0, BLOCK_D)
    there, inside = head < heads, column < dim
    at = (row * heads + head)[:, None] * dim + column[None, :]
    mask = there[:, None] & inside[None, :]
    q = tl.load(query + at, mask=mask, other=0.0)
    length = tl.load(lengths + row)
    peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    value = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for start in tl.range(0, count + window, BLOCK_N):
        place = start + tl.arange(0, BLOCK_N)
        chosen = tl.load(selected + row * count + place, mask=place < count, other=-1)
        recent = length - 1 - (place - count)
        position = tl.where(place < count, chosen, recent).to(tl.int64)
        valid = (position >= 0) & (place < count + window)
        slot = position
        if PAGE:
            page = tl.load(block_table + row * table_stride + position // PAGE, mask=valid, other=0)
            slot = page.to(tl.int64) * PAGE + position % PAGE
        rows = tl.load(latent + slot[:, None] * dim + column[None, :], mask=valid[:, None] & inside[None, :], other=0.0)
        score = tl.dot(q, tl.trans(rows), input_precision="ieee") * scale
        score = tl.where(valid[None, :], score, float("-inf"))
        next_peak = tl.maximum(peak, tl.max(score, axis=1))
        unit = tl.where(next_peak == float("-inf"), 0.0, next_peak)
        weight = tl.exp(score - unit[:, None])
        keep = tl.exp(peak - unit)
        total = total * keep + tl.sum(weight, axis=1)
        value = value * keep[:, None] + tl.dot(weight, rows, input_precision="ieee")
        peak = next_peak
    bias = tl.load(sink + head, mask=there, other=0.0)
    unit = tl.where(peak == float("-inf"), 0.0, peak)
    inverse = tl.where(total == 0.0, 0.0, 1.0 / (total + tl.exp(bias - unit)))
    tl.store(out + at, value * inverse[:, None], mask=mask)
    tl.store(lse + row * heads + head, peak + tl.log(total), mask=there)


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
    """As `pdwatch.kernels.sparse_mla_decode`, for contiguous float32 tensors."""
    page_size = latent_pages.shape[1]
    return _launch(query, latent_pages, block_table, selected, lengths, sink, window, scale, page_size)


def sparse_mla_prefill(
    query: Tensor, latent: Tensor, selected: Tensor, lengths: Tensor, sink: Tensor, window: int, scale: float
) -> tuple[Tensor, Tensor]:
    """As `pdwatch.kernels.sparse_mla_prefill`, for contiguous float32 tensors; no position selected twice."""
    return _launch(query, latent, selected, selected, lengths, sink, window, scale, 0)


def _launch(
    query: Tensor,
    latent: Tensor,
    block_table: Tensor,
    selected: Tensor,
    lengths: Tensor,
    sink: Tensor,
    window: int,
    scale: float,
    page_size: int,
) -> tuple[Tensor, Tensor]:
    named = {"query": query, "latent": latent, "sink": sink}
    for name, tensor in named.items():
        if tensor.dtype != torch.float32:
            raise KernelArguments(f"{name} is {tensor.dtype}, the Triton table takes float32: use the eager one")
    named |= {"selected": selected, "lengths": lengths}
    for name, tensor in named.items():
        if not tensor.is_contiguous() or tensor.device != query.device:
            raise KernelArguments(
                f"{name} on {tensor.device} has strides {tensor.stride()}: make it contiguous on {query.device}"
            )
    if block_table.stride(-1) != 1 or block_table.device != query.device:
        raise KernelArguments(
            f"block_table on {block_table.device} has strides {block_table.stride()}: its entries must be adjacent, on "
            f"{query.device}"
        )
    rows, heads, dim = query.shape
    if latent.shape[-1] != dim:
        raise KernelArguments(f"latent rows have {latent.shape[-1]} columns, query heads {dim}: they must be alike")
    out = torch.empty_like(query)
    lse = query.new_empty(rows, heads)
    if rows:
        block_heads = max(16, min(triton.next_power_of_2(heads), 64))
        _table_mla_kernel[(rows, triton.cdiv(heads, block_heads))](
            query, latent, block_table, selected, lengths, sink, out, lse, scale, heads, dim, block_table.stride(0),
            selected.shape[-1], window, PAGE=page_size, BLOCK_H=block_heads,
            BLOCK_D=max(16, triton.next_power_of_2(dim)), BLOCK_N=32,
        )  # fmt: skip
    return out, lse
