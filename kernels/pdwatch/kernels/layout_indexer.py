"""Page layouts of the indexer's keys.

FP8   a page is `page_size * 128` bytes of e4m3 values, then `page_size * 4` bytes of fp32 scales: 132 bytes a key. The
      layout of DeepGEMM and SGLang. Not interleaved: read the other way round, the scales come out around 1e35.
BF16  a page is [page_size, 128] bfloat16, without scales.

A page may lie anywhere in a bigger pool: only `stride(0)` tells where the next one starts.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments

INDEX_DIM = 128
SCALE_BYTES = 4
FP8_MAX = 448.0


class IndexKeyLayout(StrEnum):
    """How the keys of one page lie in memory."""

    FP8 = "fp8_132"
    BF16 = "bf16"

    @property
    def query_dtype(self) -> torch.dtype:
        """The dtype a query has for keys of this layout."""
        return torch.float8_e4m3fn if self is IndexKeyLayout.FP8 else torch.bfloat16


def page_bytes(layout: IndexKeyLayout, page_size: int) -> int:
    """Bytes that a page of `page_size` keys occupies, without padding."""
    width = INDEX_DIM + SCALE_BYTES if layout is IndexKeyLayout.FP8 else 2 * INDEX_DIM
    return page_size * width


def pack_index_keys(keys: Tensor, layout: IndexKeyLayout, *, round_scales: bool = False) -> Tensor:
    """Pages of float keys [pages, page_size, 128], quantised as a writer of the cache does it.

    `round_scales` rounds the fp8 scales up to powers of two (UE8M0, as DeepSeek-V3.2 and V4 write them).

    Returns uint8 [pages, page_bytes] for FP8, bfloat16 [pages, page_size, 128] for BF16. Raises KernelArguments.
    """
    if keys.ndim != 3 or keys.shape[-1] != INDEX_DIM:
        raise KernelArguments(f"keys are {list(keys.shape)}, give [pages, page_size, {INDEX_DIM}]")
    if layout is IndexKeyLayout.BF16:
        return keys.to(torch.bfloat16).contiguous()
    pages, page_size, _ = keys.shape
    # a key of zeros needs a scale that is not zero.
    scales = (keys.abs().amax(dim=-1).float() / FP8_MAX).clamp(min=1e-12)
    if round_scales:
        scales = torch.exp2(scales.log2().ceil())
    values = (keys / scales[..., None].to(keys.dtype)).float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    packed = torch.empty(pages, page_bytes(layout, page_size), dtype=torch.uint8, device=keys.device)
    packed[:, : page_size * INDEX_DIM] = values.view(torch.uint8).reshape(pages, -1)
    packed[:, page_size * INDEX_DIM :] = scales.contiguous().view(torch.uint8).reshape(pages, -1)
    return packed


def unpack_index_keys(
    pages: Tensor, layout: IndexKeyLayout, page_size: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """The values and scales that packed pages stand for, exactly.

    pages  uint8 [pages, >= page_bytes] for FP8, bfloat16 [pages, page_size, 128] for BF16

    Returns values [pages, page_size, 128] and scales [pages, page_size] (ones for BF16), both of `dtype`.
    """
    if layout is IndexKeyLayout.BF16:
        return pages.to(dtype), torch.ones(pages.shape[0], page_size, dtype=dtype, device=pages.device)
    values_end = page_size * INDEX_DIM
    values = pages[:, :values_end].contiguous().view(torch.float8_e4m3fn).view(-1, page_size, INDEX_DIM)
    scales = pages[:, values_end : values_end + page_size * SCALE_BYTES].contiguous().view(torch.float32)
    return values.to(torch.float32).to(dtype), scales.to(dtype)
