"""A sparse MLA case whose pages lie more than 2^31 bytes and elements into their pool."""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.families.mla_bytes import dim_of, random_pages
from pdwatch.kernels.harness.kernel import Case, Kind

_BEYOND = 2**31 + 2**20
# not in every Python's mmap module; Linux since 2.1
_MAP_NORESERVE = 0x4000


def mla_huge(layout: str, heads: int, seed: int, device: torch.device) -> Case | None:
    """Few pages so far apart that the last ones lie past 2^31 elements; None when that does not fit."""
    generator = torch.Generator().manual_seed(seed + 5)
    pages = random_pages(layout, 6, 16, generator)
    apart = spread(pages, device)
    if apart is None:
        return None
    indices = torch.randint(0, 6 * 16, (2, 1, 40), generator=generator, dtype=torch.int32)
    # both ends of the pool are used by each row
    indices[:, :, 0], indices[:, :, -1] = 3, 6 * 16 - 1
    query = torch.randn(2, 1, heads, dim_of(layout), generator=generator) * 2
    inputs: dict[str, Any] = {
        "query": query.to(torch.bfloat16).to(device),
        "sink": torch.randn(heads, generator=generator).to(device),
        "scale": dim_of(layout) ** -0.5,
        "layout": layout,
        "window_pages": apart,
        "window_page_size": 16,
        "window_indices": indices.to(device),
        "window_lengths": torch.full((2,), 40, dtype=torch.int32, device=device),
    }
    return Case("pages past 2^31", Kind.ADVERSARIAL, inputs)


def spread(pages: Tensor, device: torch.device, multiple: int = 64) -> Tensor | None:
    """The pages evenly over a pool, the upper half of them past 2^31 elements; what lies between is never touched.

    The stride is a multiple of `multiple` * 576. None when the device has no room for it.
    """
    stride = _BEYOND // (pages.shape[0] // 2) // (multiple * 576) * (multiple * 576) + multiple * 576
    elements = stride * (pages.shape[0] - 1) + pages[0].numel()
    memory = untouched(elements * pages.element_size(), device)
    if memory is None:
        return None
    moved = memory.view(pages.dtype).as_strided(pages.shape, (stride, *pages.stride()[1:]))
    moved.copy_(pages)
    return moved


def untouched(count: int, device: torch.device) -> Tensor | None:
    """`count` bytes; on a CPU only what is written takes memory."""
    try:
        if device.type != "cpu":
            return torch.empty(count, dtype=torch.uint8, device=device)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        return torch.frombuffer(mmap.mmap(-1, count, flags), dtype=torch.uint8)
    except (OSError, RuntimeError, ValueError):
        return None
