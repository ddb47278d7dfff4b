"""A paged reduction in Triton, small enough to plant bugs in: out[row] = sum of the row's first `length` values."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def paged_sum_kernel(
    pages,
    table,
    lengths,
    out,
    partial,
    page_stride,
    table_stride,
    splits,
    width,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    NARROW: tl.constexpr,
    WHOLE_WIDTH: tl.constexpr,
    UNMASKED: tl.constexpr,
    ATOMIC: tl.constexpr,
):
    """One program a (row, split); split s takes the pages s, s + splits, …

    NARROW       the offset of a page is a 32-bit product
    WHOLE_WIDTH  loops over the table's width and masks instead of stopping at the length
    UNMASKED     loads whole pages and multiplies what is past the length by zero
    ATOMIC       splits add into `out` as they come, instead of leaving their sums in `partial`
    """
    row = tl.program_id(0)
    split = tl.program_id(1)
    length = tl.load(lengths + row)
    pages_of_row = tl.cdiv(length, PAGE)
    if WHOLE_WIDTH:
        pages_of_row = width
    columns = tl.arange(0, DIM)
    places = tl.arange(0, PAGE)
    total = tl.zeros([DIM], dtype=tl.float32)
    for number in range(split, pages_of_row, splits):
        valid = number * PAGE + places < length
        page = tl.load(table + row * table_stride + number, mask=number * PAGE < length, other=0)
        if NARROW:
            # without the sign bit, so that the bug reads another page and does not fault
            base = (page.to(tl.int32) * page_stride.to(tl.int32)) & 0x7FFFFFFF
        else:
            base = page.to(tl.int64) * page_stride
        at = pages + base + places[:, None] * DIM + columns[None, :]
        if UNMASKED:
            values = tl.load(at) * valid[:, None].to(tl.float32)
        else:
            values = tl.load(at, mask=valid[:, None], other=0.0)
        total += tl.sum(values, axis=0)
    if ATOMIC:
        tl.atomic_add(out + row * DIM + columns, total)
    else:
        tl.store(partial + (row * splits + split) * DIM + columns, total)


@triton.jit
def merge_kernel(partial, out, splits, DIM: tl.constexpr):
    """Adds the splits of a row in ascending order."""
    row = tl.program_id(0)
    columns = tl.arange(0, DIM)
    total = tl.zeros([DIM], dtype=tl.float32)
    for split in range(splits):
        total += tl.load(partial + (row * splits + split) * DIM + columns)
    tl.store(out + row * DIM + columns, total)
