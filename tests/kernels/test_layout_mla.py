"""Cache rows of sparse MLA: bytes of each layout, packing and unpacking."""

from __future__ import annotations

import pytest
import torch

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_mla import MlaLayout, pack_mla_rows, unpack_mla_rows

FP8 = [MlaLayout.FP8_V4, MlaLayout.FP8_V32]


def rows(layout: MlaLayout, pages: int = 3, page_size: int = 5) -> torch.Tensor:
    torch.manual_seed(1)
    spread = torch.exp2(torch.randint(-6, 6, (pages, page_size, 1)).double())
    return torch.randn(pages, page_size, layout.dim, dtype=torch.float64) * spread


def test_v4_page_holds_data_rows_then_scale_rows() -> None:
    page = torch.zeros(1, 2, 512)
    page[0, 1, 64:128] = 3.0
    page[0, 1, 448:] = -1.0

    packed = pack_mla_rows(page, MlaLayout.FP8_V4)

    # two tokens: 1152 bytes of data, 16 of scales, padded to three times 576.
    assert packed.shape == (1, 1728)
    assert packed[0, 576 + 64 : 576 + 128].view(torch.float8_e4m3fn).float().tolist() == [384.0] * 64
    assert packed[0, 1152 + 8 + 1] == 127 - 7
    assert packed[0, 576 + 448 : 1152].view(torch.bfloat16).float().tolist() == [-1.0] * 64
    assert packed[0, 1152 + 7] == 0 and not packed[0, 1168:].any()


def test_v32_token_holds_values_scales_and_rope() -> None:
    page = torch.zeros(1, 2, 576)
    page[0, 1, 128:256] = 896.0
    page[0, 1, 512:] = 0.5

    packed = pack_mla_rows(page, MlaLayout.FP8_V32)

    assert packed.shape == (1, 2 * 656)
    assert packed[0, 656 + 128 : 656 + 256].view(torch.float8_e4m3fn).float().tolist() == [448.0] * 128
    assert packed[0, 656 + 512 : 656 + 528].clone().view(torch.float32)[1] == 2.0
    assert packed[0, 656 + 528 :].clone().view(torch.bfloat16).float().tolist() == [0.5] * 64


@pytest.mark.parametrize("page_size", [1, 2, 53, 61, 64, 69, 256, 576])
def test_v4_pages_start_at_multiples_of_576(page_size: int) -> None:
    size = MlaLayout.FP8_V4.page_bytes(page_size)

    assert size % 576 == 0 and page_size * 584 <= size < page_size * 584 + 576


@pytest.mark.parametrize("layout", list(MlaLayout))
def test_unpacked_rows_are_near_the_packed_ones(layout: MlaLayout) -> None:
    wanted = rows(layout)

    unpacked = unpack_mla_rows(pack_mla_rows(wanted, layout), layout, 5)

    # half of the last mantissa bit: 2^-9 for bfloat16, 2^-4 for e4m3, of the tile's largest value at most.
    bound = 2.0**-4 if layout.is_fp8 else 2.0**-8
    assert ((unpacked - wanted).abs() <= bound * wanted.abs().amax(-1, keepdim=True)).all()
    assert (unpacked[..., layout.nope :] - wanted[..., layout.nope :]).abs().max() <= 2.0**-8 * wanted.abs().max()


@pytest.mark.parametrize("layout", list(MlaLayout))
def test_packing_is_exact_for_what_it_unpacked(layout: MlaLayout) -> None:
    packed = pack_mla_rows(rows(layout), layout)
    exact = unpack_mla_rows(packed, layout, 5)

    assert torch.equal(unpack_mla_rows(pack_mla_rows(exact, layout), layout, 5), exact)


@pytest.mark.parametrize("layout", FP8)
def test_largest_values_do_not_saturate(layout: MlaLayout) -> None:
    page = torch.full((1, 1, layout.dim), 448.0 * 2**-20)
    page[0, 0, : layout.tile] = torch.nextafter(torch.tensor(448.0), torch.tensor(449.0))

    unpacked = unpack_mla_rows(pack_mla_rows(page, layout), layout, 1, torch.float32)

    torch.testing.assert_close(unpacked, page.to(torch.float32), rtol=2.0**-4, atol=0)


def test_scale_byte_255_is_not_a_number() -> None:
    packed = pack_mla_rows(torch.ones(1, 1, 512), MlaLayout.FP8_V4)
    packed[0, 576 + 2] = 255

    assert unpack_mla_rows(packed, MlaLayout.FP8_V4, 1).isnan()[0, 0].nonzero().flatten().tolist() == list(
        range(128, 192)
    )


def test_other_dims_are_refused() -> None:
    with pytest.raises(KernelArguments, match="rows have 576 columns, fp8_v4 takes 512"):
        pack_mla_rows(torch.zeros(1, 1, 576), MlaLayout.FP8_V4)
