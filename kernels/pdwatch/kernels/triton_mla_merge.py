"""The fold of tile or group states from the workspace into output and lse, in the order of `triton_mla_kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from pdwatch.kernels.triton_mla_kernels import fold_factors, normaliser


@triton.jit
def _state(partial, stats, first, unit, end, heads, head, columns):
    """State `unit`: m, l and its columns of the weighted sum; empty from `end` on."""
    # the last state stands in for those past the end: loads without a mask overlap, masked ones do not.
    state = (first + tl.minimum(unit, end - 1)) * heads + head
    one = tl.arange(0, 1)
    m = tl.load(stats + state * 2 + one)
    total = tl.load(stats + state * 2 + 1 + one)
    value = tl.load(partial + state * 512 + columns)
    there = unit < end
    return tl.where(there, m, float("-inf")), tl.where(there, total, 0.0), tl.where(there, value, 0.0)


@triton.jit
def _fold(m, total, value, next_m, next_total, next_value):
    m, keep, add = fold_factors(m, next_m)
    return m, total * keep + next_total * add, value * keep + next_value * add


@triton.jit
def merge_kernel(
    out, lse, sink, partial, stats, lengths_0, count_0, lengths_1, count_1, out_stride, out_token_stride,
    out_head_stride, heads, query_tokens, units,
    TWO: tl.constexpr, LENGTHS_0: tl.constexpr, LENGTHS_1: tl.constexpr, HAS_SINK: tl.constexpr, CHUNK: tl.constexpr,
    GROUP: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid: column blocks * heads * rows, the first fastest. A state covers CHUNK tiles, a group GROUP states."""
    program = tl.program_id(0)
    block = program % (512 // COLUMNS)
    head = program // (512 // COLUMNS) % heads
    row = program // (512 // COLUMNS) // heads
    batch = row // query_tokens
    length = count_0
    if LENGTHS_0:
        length = tl.minimum(tl.load(lengths_0 + batch), count_0)
    tiles = tl.cdiv(tl.maximum(length, 0), TILE)
    if TWO:
        length = count_1
        if LENGTHS_1:
            length = tl.minimum(tl.load(lengths_1 + batch), count_1)
        tiles += tl.cdiv(tl.maximum(length, 0), TILE)
    states = tl.cdiv(tiles, CHUNK)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    first = row.to(tl.int64) * units
    if DEPENDENT:
        # what the kernel before this one writes is visible from here on.
        tl.extra.cuda.gdc_wait()

    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    value = tl.zeros([COLUMNS], tl.float32)
    for group in tl.range(0, tl.cdiv(states, GROUP)):
        group_m = tl.full([1], float("-inf"), tl.float32)
        group_total = tl.zeros([1], tl.float32)
        group_value = tl.zeros([COLUMNS], tl.float32)
        for place in tl.static_range(0, GROUP, 5):
            # five states are on their way before the first is folded.
            unit = group * GROUP + place
            end = tl.minimum(states, group * GROUP + GROUP)
            m0, l0, v0 = _state(partial, stats, first, unit, end, heads, head, columns)
            m1, l1, v1 = _state(partial, stats, first, unit + 1, end, heads, head, columns)
            m2, l2, v2 = _state(partial, stats, first, unit + 2, end, heads, head, columns)
            m3, l3, v3 = _state(partial, stats, first, unit + 3, end, heads, head, columns)
            m4, l4, v4 = _state(partial, stats, first, unit + 4, end, heads, head, columns)
            group_m, group_total, group_value = _fold(group_m, group_total, group_value, m0, l0, v0)
            group_m, group_total, group_value = _fold(group_m, group_total, group_value, m1, l1, v1)
            group_m, group_total, group_value = _fold(group_m, group_total, group_value, m2, l2, v2)
            group_m, group_total, group_value = _fold(group_m, group_total, group_value, m3, l3, v3)
            group_m, group_total, group_value = _fold(group_m, group_total, group_value, m4, l4, v4)
        m, total, value = _fold(m, total, value, group_m, group_total, group_value)

    bias = total
    if HAS_SINK:
        bias = tl.load(sink + head + tl.arange(0, 1))
    inverse = normaliser(m, total, bias, HAS_SINK)
    row_token = row % query_tokens
    target = out + batch.to(tl.int64) * out_stride + row_token * out_token_stride + head * out_head_stride + columns
    tl.store(target, (value * inverse).to(out.dtype.element_ty))
    if block == 0:
        tl.store(lse + row.to(tl.int64) * heads + head + tl.arange(0, 1), (m + tl.log2(total)) * 0.6931471805599453)
