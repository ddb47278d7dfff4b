"""The bytes of packed KV pages, written and read a second time: the harness does not trust the layout module it tests.

Layouts by name: `bf16_v4` and `bf16_v32` are rows of bfloat16; `fp8_v4` is a page of data rows (448 e4m3 | 64 bf16) and
then scale rows (7 UE8M0, 1 unused); `fp8_v32` is 512 e4m3 | 4 fp32 scales | 64 bf16 a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOPE_V4, ROPE, SCALES_V4, TILE_V4 = 448, 64, 7, 64
DATA_BYTES_V4, SCALE_BYTES_V4 = NOPE_V4 + 2 * ROPE, 8
LATENT_V32, TILE_V32 = 512, 128
BYTES_V32 = LATENT_V32 + LATENT_V32 // TILE_V32 * 4 + 2 * ROPE
# the stride of a page is a multiple of this in SGLang's pools
PAGE_MULTIPLE_V4 = 576


def dim_of(layout: str) -> int:
    """Width of a row and of a query."""
    return 512 if layout.endswith("v4") else 576


def random_pages(layout: str, pages: int, page_size: int, generator: torch.Generator) -> Tensor:
    """Pages of rows about as large as 1. Packed pages have a stride larger than their bytes."""
    rows = torch.randn(pages, page_size, dim_of(layout), generator=generator)
    if layout.startswith("bf16"):
        return rows.to(torch.bfloat16)
    rope = rows[..., -ROPE:].to(torch.bfloat16).contiguous().view(torch.uint8).view(pages, page_size, 2 * ROPE)
    codes = rows[..., :-ROPE].to(torch.float8_e4m3fn).view(torch.uint8)
    if layout == "fp8_v4":
        data = torch.cat([codes, rope], dim=-1).view(pages, -1)
        # powers of two from 1/2 to 2; the eighth byte belongs to nothing
        exponents = torch.randint(126, 129, (pages, page_size, SCALE_BYTES_V4), generator=generator)
        scales = exponents.to(torch.uint8).view(pages, -1)
        tail = torch.full((pages, -(data.shape[1] + scales.shape[1]) % PAGE_MULTIPLE_V4), 0xFF, dtype=torch.uint8)
        return _strided(torch.cat([data, scales, tail], dim=-1), PAGE_MULTIPLE_V4)
    scales = torch.rand(pages, page_size, LATENT_V32 // TILE_V32, generator=generator) + 0.5
    scale_bytes = scales.to(torch.float32).view(torch.uint8).view(pages, page_size, -1)
    return _strided(torch.cat([codes, scale_bytes, rope], dim=-1).view(pages, -1), BYTES_V32)


def rows_of_pages(layout: str, pages: Tensor, page_size: int) -> Tensor:
    """What the bytes stand for, float64 [pages, page_size, dim]."""
    count = pages.shape[0]
    if layout.startswith("bf16"):
        return pages.to(torch.float64)
    if layout == "fp8_v4":
        end = page_size * DATA_BYTES_V4
        data = pages[:, :end].reshape(count, page_size, DATA_BYTES_V4)
        exponents = pages[:, end : end + page_size * SCALE_BYTES_V4].reshape(count, page_size, SCALE_BYTES_V4)
        scales = torch.exp2(exponents[..., :SCALES_V4].to(torch.float64) - 127)
        nope = _e4m3(data[..., :NOPE_V4]) * scales.repeat_interleave(TILE_V4, dim=-1)
        return torch.cat([nope, _bf16(data[..., NOPE_V4:])], dim=-1)
    tokens = pages[:, : page_size * BYTES_V32].reshape(count, page_size, BYTES_V32)
    scale_end = BYTES_V32 - 2 * ROPE
    scales = tokens[..., LATENT_V32:scale_end].contiguous().view(torch.float32).to(torch.float64)
    latent = _e4m3(tokens[..., :LATENT_V32]) * scales.repeat_interleave(TILE_V32, dim=-1)
    return torch.cat([latent, _bf16(tokens[..., scale_end:])], dim=-1)


def unread_of_pages(layout: str, pages: Tensor, page_size: int, used: Tensor) -> Tensor:
    """Elements of the pages that no row needs; `used` [pages, page_size] says which slots are attended to."""
    unused = ~used.to(pages.device)
    if layout.startswith("bf16"):
        return unused[..., None].expand(pages.shape)
    mask = torch.ones(pages.shape, dtype=torch.bool, device=pages.device)
    if layout == "fp8_v32":
        mask[:, : page_size * BYTES_V32] = unused.repeat_interleave(BYTES_V32, dim=1)
        return mask
    end = page_size * DATA_BYTES_V4
    mask[:, :end] = unused.repeat_interleave(DATA_BYTES_V4, dim=1)
    scales = unused[..., None].repeat(1, 1, SCALE_BYTES_V4)
    scales[..., SCALES_V4:] = True
    mask[:, end : end + page_size * SCALE_BYTES_V4] = scales.flatten(1)
    return mask


def restrided(pages: Tensor, extra: int) -> Tensor:
    """The same pages with a page stride that is `extra` elements larger, the gaps full of NaN bytes."""
    stride = pages.stride(0) + extra
    memory = torch.full((pages.shape[0] * stride * pages.element_size(),), 0xFF, dtype=torch.uint8)
    moved = memory.to(pages.device).view(pages.dtype).as_strided(pages.shape, (stride, *pages.stride()[1:]))
    moved.copy_(pages)
    return moved


def _strided(pages: Tensor, multiple: int) -> Tensor:
    """A view with gaps, as of one layer in a pool of several."""
    stride = -(-pages.shape[1] // multiple) * multiple + multiple
    view = torch.full((pages.shape[0] * stride,), 0xFF, dtype=torch.uint8).as_strided(pages.shape, (stride, 1))
    view.copy_(pages)
    return view


def _e4m3(codes: Tensor) -> Tensor:
    # by way of fp32: there is no cast from 8 bits to float64 everywhere
    return codes.contiguous().view(torch.float8_e4m3fn).to(torch.float32).to(torch.float64)


def _bf16(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.bfloat16).to(torch.float64)
