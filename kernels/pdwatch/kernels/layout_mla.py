"""Rows of the KV cache of sparse MLA: which bytes a token takes, packing and unpacking.

    bf16_v4   512 bf16: 448 nope | 64 rope. K and V are the whole row (DeepSeek-V4).
    bf16_v32  576 bf16: 512 latent | 64 rope. V is the latent (DeepSeek-V3.2, absorbed).
    fp8_v4    584 B/token, split in the page: `page_size` data rows of 576 B (448 e4m3 | 64 bf16), then `page_size`
              scale rows of 8 B (7 UE8M0 exponents, one for each 64 columns, and a pad byte). Pages start at multiples
              of 576 B.
    fp8_v32   656 B/token: 512 e4m3 | 4 float32 scales, one for each 128 columns | 64 bf16.

Source: FlashMLA, tests/quant.py ("MODEL1" and "V32").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments

ROPE = 64
VALUE_DIM = 512
E4M3_MAX = 448.0


class MlaLayout(StrEnum):
    """How the rows of a KV pool lie in memory."""

    BF16_V4 = "bf16_v4"
    FP8_V4 = "fp8_v4"
    BF16_V32 = "bf16_v32"
    FP8_V32 = "fp8_v32"

    @property
    def is_fp8(self) -> bool:
        return self in (MlaLayout.FP8_V4, MlaLayout.FP8_V32)

    @property
    def is_v4(self) -> bool:
        return self in (MlaLayout.BF16_V4, MlaLayout.FP8_V4)

    @property
    def nope(self) -> int:
        """Columns before the rotary ones."""
        return 448 if self.is_v4 else 512

    @property
    def dim(self) -> int:
        """Columns of a key, and of a query head."""
        return self.nope + ROPE

    @property
    def tile(self) -> int:
        """Columns that share one scale (fp8 layouts)."""
        return 64 if self.is_v4 else 128

    def page_bytes(self, page_size: int) -> int:
        """Bytes of one page of `page_size` tokens."""
        if self is MlaLayout.FP8_V4:
            return (page_size * 584 + 575) // 576 * 576
        return page_size * (656 if self is MlaLayout.FP8_V32 else 2 * self.dim)


@dataclass(frozen=True, slots=True)
class KvScope:
    """One set of KV rows of each query: the sliding window, or the indexed rows.

    pages    fp8: uint8 [pages, page bytes], stride(1) == 1, stride(0) at least `layout.page_bytes(page_size)` and a
             multiple of 16 (a view of a bigger pool will do); bf16: bfloat16 [pages, page_size, dim]
    indices  int32 [batch, query_tokens, count]: page * page_size + offset; -1, anywhere, is no row
    lengths  int32 [batch] or None: only the leftmost `lengths` entries of `indices` count; None: all of them
    """

    pages: Tensor
    layout: MlaLayout
    page_size: int
    indices: Tensor
    lengths: Tensor | None = None


def pack_mla_rows(rows: Tensor, layout: MlaLayout) -> Tensor:
    """Pages of `rows` [pages, page_size, dim] float in `layout`.

    bf16 layouts round to bfloat16 [pages, page_size, dim]; fp8 layouts return uint8 [pages, page bytes], pads zero.
    Scales: amax / 448 of each tile, for fp8_v4 rounded up to a power of two (2^-127 at least).
    """
    pages, page_size, dim = rows.shape
    if dim != layout.dim:
        raise KernelArguments(f"rows have {dim} columns, {layout.value} takes {layout.dim}")
    if not layout.is_fp8:
        return rows.to(torch.bfloat16)
    nope = rows[..., : layout.nope].to(torch.float32).reshape(pages, page_size, layout.nope // layout.tile, layout.tile)
    scale = (nope.abs().amax(dim=-1) / E4M3_MAX).clamp(min=2.0**-126)
    if layout is MlaLayout.FP8_V4:
        scale = torch.exp2(scale.log2().ceil())
        # log2 may round: a scale that is one power too small would saturate the largest element.
        scale = torch.where(nope.abs().amax(dim=-1) > scale * E4M3_MAX, scale * 2, scale)
    values = (nope / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).flatten(-2).view(torch.uint8)
    rope = rows[..., layout.nope :].to(torch.bfloat16).contiguous().view(torch.uint8)
    packed = torch.zeros(pages, layout.page_bytes(page_size), dtype=torch.uint8, device=rows.device)
    if layout is MlaLayout.FP8_V32:
        token = torch.cat([values, scale.contiguous().view(torch.uint8), rope], dim=-1)
        packed.copy_(token.flatten(1))
        return packed
    packed[:, : page_size * 576] = torch.cat([values, rope], dim=-1).flatten(1)
    exponents = (scale.log2() + 127).round().to(torch.uint8)
    packed[:, page_size * 576 : page_size * 584].view(pages, page_size, 8)[..., :7] = exponents
    return packed


def unpack_mla_rows(pages: Tensor, layout: MlaLayout, page_size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The rows [pages, page_size, dim] that `pages` hold, exactly where `dtype` can."""
    count = pages.shape[0]
    slots = torch.arange(count * page_size, device=pages.device)
    return take_mla_rows(pages, layout, page_size, slots, dtype).view(count, page_size, layout.dim)


def take_mla_rows(pages: Tensor, layout: MlaLayout, page_size: int, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., dim] at `slots` [...] (page * page_size + offset). Reads no byte of any other row."""
    page, offset = torch.div(slots, page_size, rounding_mode="floor").long(), (slots % page_size).long()
    if not layout.is_fp8:
        return pages[page, offset].to(dtype)

    def take(start: Tensor, size: int) -> Tensor:
        return pages[page[..., None], start[..., None] + torch.arange(size, device=pages.device)].contiguous()

    if layout is MlaLayout.FP8_V4:
        values, rope = take(offset * 576, 448), take(offset * 576 + 448, 128)
        exponents = take(page_size * 576 + offset * 8, 7)
        scale = torch.exp2(exponents.to(dtype) - 127).masked_fill_(exponents == 255, float("nan"))
    else:
        values, rope = take(offset * 656, 512), take(offset * 656 + 528, 128)
        scale = take(offset * 656 + 512, 16).view(torch.float32).to(dtype)
    tiles = values.view(torch.float8_e4m3fn).to(dtype).reshape(*slots.shape, layout.nope // layout.tile, layout.tile)
    nope = tiles * scale[..., None]
    return torch.cat([nope.flatten(-2), rope.view(torch.bfloat16).to(dtype)], dim=-1)
