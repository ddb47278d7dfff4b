"""Packed pages of index keys: where the bytes lie, and what they stand for."""

from __future__ import annotations

import pytest
import torch

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_indexer import IndexKeyLayout, pack_index_keys, page_bytes, unpack_index_keys

FP8, BF16 = IndexKeyLayout.FP8, IndexKeyLayout.BF16


def keys(pages: int = 3, page_size: int = 64) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(pages, page_size, 128, dtype=torch.float64)


def test_fp8_pages_hold_all_values_then_all_scales() -> None:
    original = keys()

    packed = pack_index_keys(original, FP8)

    assert packed.shape == (3, 64 * 132) and page_bytes(FP8, 64) == 8448
    scales = packed[:, 8192:].contiguous().view(torch.float32)
    torch.testing.assert_close(scales.double(), original.abs().amax(-1) / 448, rtol=1e-6, atol=0)
    key = packed[1, 5 * 128 : 6 * 128].view(torch.float8_e4m3fn).double() * scales[1, 5].double()
    # half a step of 3 mantissa bits, or half the smallest step times the scale.
    assert ((key - original[1, 5]).abs() <= original[1, 5].abs() / 16 + scales[1, 5].double() * 2.0**-10).all()


@pytest.mark.parametrize("round_scales", [False, True])
def test_unpacking_tells_what_the_bytes_stand_for(round_scales: bool) -> None:
    packed = pack_index_keys(keys(), FP8, round_scales=round_scales)

    values, scales = unpack_index_keys(packed, FP8, 64)

    assert values.dtype == scales.dtype == torch.float64
    key = keys()
    # a step is at most 2^-3 of a value, or the smallest step of its scale.
    assert ((values * scales[..., None] - key).abs() <= key.abs() / 16 + scales[..., None] * 2.0**-10).all()
    assert not round_scales or torch.equal(scales.log2(), scales.log2().round())


def test_unpacking_takes_pages_of_a_bigger_pool() -> None:
    packed = pack_index_keys(keys(), FP8)
    pool = torch.full((3, 9000), 255, dtype=torch.uint8)
    pool[:, : packed.shape[1]] = packed

    for whole, view in zip(unpack_index_keys(packed, FP8, 64), unpack_index_keys(pool, FP8, 64), strict=True):
        assert torch.equal(whole, view)


def test_a_key_of_zeros_stays_zero() -> None:
    values, scales = unpack_index_keys(pack_index_keys(torch.zeros(1, 4, 128), FP8), FP8, 4)

    assert not values.any() and scales.isfinite().all()


def test_bf16_pages_are_rounded_keys_without_scales() -> None:
    original = keys()

    values, scales = unpack_index_keys(pack_index_keys(original, BF16), BF16, 64)

    assert torch.equal(values, original.to(torch.bfloat16).double()) and (scales == 1).all()


def test_other_shapes_are_refused() -> None:
    with pytest.raises(KernelArguments, match=r"\[2, 64, 96\], give \[pages, page_size, 128\]"):
        pack_index_keys(torch.zeros(2, 64, 96), FP8)
