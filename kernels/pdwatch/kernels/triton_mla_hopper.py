"""The sparse MLA decode kernel for Hopper and V4's fp8 rows: eight warps gather and decode, eight multiply.

States are folded as in `triton_mla_kernels`, with tiles of 128 rows. The gathering warps turn e4m3 rows into bfloat16
panels of 64 columns in shared memory (`triton_mla_gather`). Each of two multiplying groups of four warps takes the
scores of one half of a tile, the two agree on the unit of its softmax, and each weights its own half of the output
columns with all of the tile. A panel is refilled as soon as both have used it. Written in Gluon, which leaves layouts,
barriers and the split into warps to the author.

Keys and queries are exact: an e4m3 value times a power of two is a bfloat16, from scales of 2^-117 on. Weights are
rounded once, to bfloat16.
V3.2's rows are not taken: their float32 scales would round every key to bfloat16, which moves lse by 1e-2 at scores of
10, and `triton_mla_kernels` keeps them exact.

Weights below 2^-60 of the unit of their tile and states below 2^-64 of the largest one count as 0, in the sum as in the
output: an output misses at most keys * 2^-59 of the largest element, which shows only where the rows that matter hold
zeros.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from pdwatch.kernels.triton_mla_gather import GATHER_WARPS, TILE, gather_scopes

_FAR = gl.constexpr(-64.0)
_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
_PANEL = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
_FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def power_of_two(exponent):
    """2^exponent, exact, for int32 in -126..127."""
    return ((exponent + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def fold_factors(m, m_next):
    """Unit of two states with units 2^m and 2^m_next, and the powers of two that bring each to it."""
    unit = gl.maximum(m, m_next)
    zero = gl.where(unit == float("-inf"), 0.0, unit)
    old, new = m - zero, m_next - zero
    keep = gl.where(old < _FAR, 0.0, power_of_two(gl.maximum(old, _FAR).to(gl.int32)))
    add = gl.where(new < _FAR, 0.0, power_of_two(gl.maximum(new, _FAR).to(gl.int32)))
    return unit, keep, add


@gluon.jit
def _copy_queries(query, head_stride, heads, queries, ready):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    at = query + head[:, None] * head_stride + column[None, :]
    for panel in gl.static_range(8):
        async_copy.async_copy_global_to_shared(queries.index(panel), at + panel * 64, mask=(head < heads)[:, None])
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    mbarrier.arrive(ready, count=1)


@gluon.jit
def _scores(queries, k0, k1, k2, k3, absent, scale, nought, GROUP: gl.constexpr):
    """Scores of one half of a tile, -inf where there is no row. `nought` is 0."""
    left = GROUP * 2 + nought
    right = left + 1
    s = gl.zeros([64, 64], gl.float32, _MMA)
    s = warpgroup_mma(queries.index(0 + nought), k0.index(left).permute((1, 0)), s, use_acc=False, is_async=True)
    s = warpgroup_mma(queries.index(1 + nought), k1.index(left).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(queries.index(2 + nought), k2.index(left).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(queries.index(3 + nought), k3.index(left).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(queries.index(4 + nought), k0.index(right).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(queries.index(5 + nought), k1.index(right).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(queries.index(6 + nought), k2.index(right).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(queries.index(7 + nought), k3.index(right).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma_wait(0, [s])
    # chosen, not added: the query of a row without keys may be NaN.
    missing = absent.index(GROUP).load(gl.SliceLayout(0, _MMA)) != 0
    return gl.where(missing[None, :], float("-inf"), s * scale)


@gluon.jit
def _weighted(weights, panels, side, block, keep, free, nought):
    """`block` times `keep`, plus the tile's rows of one panel weighted; tells that the panel is free."""
    o = gl.zeros([64, 64], gl.float32, _MMA)
    o = warpgroup_mma(weights.index(nought), panels.index(side), o, use_acc=False, is_async=True)
    o = warpgroup_mma(weights.index(1 + nought), panels.index(side + 2), o, is_async=True)
    o = warpgroup_mma_wait(0, [o])
    mbarrier.arrive(free, count=1)
    return block * keep + o


@gluon.jit
def _store_block(pointer, block, inverse, mask, FINAL: gl.constexpr):
    if FINAL:
        gl.store(pointer, (block * inverse[:, None]).to(gl.bfloat16), mask=mask)
    else:
        gl.store(pointer, block, mask=mask)


@gluon.jit
def _multiply(
    query, query_head_stride, queries, ready, k0, k1, k2, k3, absent, full, empty, weights, peaks, sums, peaked,
    done, target, head_stride, lse, stats, sink, heads, scale, first, last, half,
    GROUP: gl.constexpr, HALVES: gl.constexpr, HAS_SINK: gl.constexpr, FINAL: gl.constexpr,
):  # fmt: skip
    """One of the two multiplying groups: the softmax of its half of each tile, and its columns of all of it."""
    rows: gl.constexpr = gl.SliceLayout(1, _MMA)
    if GROUP == 0:
        _copy_queries(query, query_head_stride, heads, queries, ready)
    mbarrier.wait(ready, 0)
    m = gl.full([64], float("-inf"), gl.float32, rows)
    total = gl.zeros([64], gl.float32, rows)
    a0 = gl.zeros([64, 64], gl.float32, _MMA)
    a1 = a0
    a2 = a0
    a3 = a0
    for tile in range(first, last):
        phase = (tile - first) & 1
        # always 0, but not to the compiler, which would keep an address in registers for each operand of each product.
        nought = (tile - first) >> 24
        mbarrier.wait(full.index(GROUP), phase)
        s = _scores(queries, k0, k1, k2, k3, absent, scale, nought, GROUP)
        peaks.index(GROUP).store(gl.ceil(gl.max(s, axis=1)))
        mbarrier.arrive(peaked, count=1)
        mbarrier.wait(peaked, phase)
        peak = gl.maximum(peaks.index(0).load(rows), peaks.index(1).load(rows))
        m, keep, add = fold_factors(m, peak)
        s = s - gl.where(peak == float("-inf"), 0.0, peak)[:, None]
        # what is flushed here would be lost in some schedules and not in others.
        p = gl.where(s < -60.0, 0.0, gl.exp2(s)) * add[:, None]
        weights.index(GROUP).store(p.to(gl.bfloat16))
        sums.index(GROUP).store(gl.sum(p, axis=1))
        fence_async_shared()
        mbarrier.arrive(done, count=1)
        mbarrier.wait(done, phase)
        total = total * keep + (sums.index(0).load(rows) + sums.index(1).load(rows))
        keep = keep[:, None]
        if HALVES:
            if GROUP == 0:
                a0 = _weighted(weights, k0, half + nought, a0, keep, empty.index(0), nought)
                a1 = _weighted(weights, k1, half + nought, a1, keep, empty.index(1), nought)
            else:
                a0 = _weighted(weights, k2, half + nought, a0, keep, empty.index(2), nought)
                a1 = _weighted(weights, k3, half + nought, a1, keep, empty.index(3), nought)
        else:
            a0 = _weighted(weights, k0, GROUP + nought, a0, keep, empty.index(0), nought)
            a1 = _weighted(weights, k1, GROUP + nought, a1, keep, empty.index(1), nought)
            a2 = _weighted(weights, k2, GROUP + nought, a2, keep, empty.index(2), nought)
            a3 = _weighted(weights, k3, GROUP + nought, a3, keep, empty.index(3), nought)

    head = gl.arange(0, 64, layout=rows)
    there = head < heads
    inverse = total
    if FINAL:
        weight = total
        if HAS_SINK:
            weight += gl.exp2(gl.load(sink + head, mask=there, other=0.0) * 1.4426950408889634 - m)
        inverse = gl.where(total == 0.0, 0.0, 1.0 / weight)
    if GROUP == 0 and half == 0:
        if FINAL:
            gl.store(lse + head, (m + gl.log2(total)) * 0.6931471805599453, mask=there)
        else:
            gl.store(stats + head * 2, m, mask=there)
            gl.store(stats + head * 2 + 1, total, mask=there)
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, _MMA)) + half * 256 + GROUP * (128 if HALVES else 256)
    at = target + head[:, None] * head_stride + column[None, :]
    mask = there[:, None]
    _store_block(at, a0, inverse, mask, FINAL)
    _store_block(at + 64, a1, inverse, mask, FINAL)
    if not HALVES:
        _store_block(at + 128, a2, inverse, mask, FINAL)
        _store_block(at + 192, a3, inverse, mask, FINAL)


@gluon.jit
def hopper_mla_kernel(
    query, out, lse, sink, partial, stats,
    pages_0, indices_0, lengths_0, page_stride_0, index_stride_0, index_token_stride_0, count_0,
    pages_1, indices_1, lengths_1, page_stride_1, index_stride_1, index_token_stride_1, count_1,
    query_stride, query_token_stride, query_head_stride, out_stride, out_token_stride, out_head_stride,
    scale, heads, query_tokens, head_blocks, units,
    PAGE_0: gl.constexpr, PAGE_1: gl.constexpr, TWO: gl.constexpr,
    LENGTHS_0: gl.constexpr, LENGTHS_1: gl.constexpr, HAS_SINK: gl.constexpr, FINAL: gl.constexpr,
    HALVES: gl.constexpr, CHUNK: gl.constexpr, MULTIPLY_REGISTERS: gl.constexpr, GATHER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `sparse_mla_kernel`, for 64 heads a block and V4's fp8 rows. HALVES: a program has half of the columns."""
    gl.static_assert(gl.num_warps() == 4)
    if not FINAL:
        gdc_launch_dependents()
    program = gl.program_id(0)
    unit = program % units
    program = program // units
    half = 0
    if HALVES:
        half = program % 2
        program = program // 2
    head_0 = program % head_blocks * 64
    row = program // head_blocks
    batch = row // query_tokens
    token = row % query_tokens
    length_0 = count_0
    if LENGTHS_0:
        length_0 = gl.minimum(gl.load(lengths_0 + batch), count_0)
    tiles_0 = gl.cdiv(gl.maximum(length_0, 0), TILE)
    tiles = tiles_0
    length_1 = 0
    if TWO:
        length_1 = count_1
        if LENGTHS_1:
            length_1 = gl.minimum(gl.load(lengths_1 + batch), count_1)
        tiles += gl.cdiv(gl.maximum(length_1, 0), TILE)
    first = unit * CHUNK
    last = gl.minimum(first + CHUNK, tiles)
    if first < last or unit == 0:
        queries = gl.allocate_shared_memory(gl.bfloat16, [8, 64, 64], _PANEL)
        k0 = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 64], _PANEL)
        k1 = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 64], _PANEL)
        k2 = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 64], _PANEL)
        k3 = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 64], _PANEL)
        weights = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], _PANEL)
        absent = gl.allocate_shared_memory(gl.int32, [2, 64], _FLAT)
        peaks = gl.allocate_shared_memory(gl.float32, [2, 64], _FLAT)
        sums = gl.allocate_shared_memory(gl.float32, [2, 64], _FLAT)
        full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
        peaked = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        for part in gl.static_range(2):
            mbarrier.init(full.index(part), count=1)
        for buffer in gl.static_range(4):
            # a panel is used by both groups, or by one where the program has half of the columns.
            mbarrier.init(empty.index(buffer), count=1 if HALVES else 2)
        mbarrier.init(peaked, count=2)
        mbarrier.init(done, count=2)
        mbarrier.init(ready, count=1)

        wide_batch = batch.to(gl.int64)
        query += wide_batch * query_stride + token * query_token_stride + head_0 * query_head_stride
        index_0 = indices_0 + wide_batch * index_stride_0 + token * index_token_stride_0
        index_1 = indices_1 + wide_batch * index_stride_1 + token * index_token_stride_1
        state = (row.to(gl.int64) * units + unit) * heads + head_0
        if FINAL:
            target = out + wide_batch * out_stride + token * out_token_stride + head_0 * out_head_stride
            head_stride = out_head_stride
        else:
            target = partial + state * 512
            head_stride = 512
        lse += row.to(gl.int64) * heads + head_0
        stats += state * 2
        sink += head_0
        gl.warp_specialize(
            [
                (_multiply, (
                    query, query_head_stride, queries, ready, k0, k1, k2, k3, absent, full, empty, weights, peaks,
                    sums, peaked, done, target, head_stride, lse, stats, sink, heads - head_0, scale, first, last,
                    half, 0, HALVES, HAS_SINK, FINAL,
                )),
                (_multiply, (
                    query, query_head_stride, queries, ready, k0, k1, k2, k3, absent, full, empty, weights, peaks,
                    sums, peaked, done, target, head_stride, lse, stats, sink, heads - head_0, scale, first, last,
                    half, 1, HALVES, HAS_SINK, FINAL,
                )),
                (gather_scopes, (
                    k0, k1, k2, k3, absent, full, empty, pages_0, page_stride_0, index_0, length_0, pages_1,
                    page_stride_1, index_1, length_1, first, last, tiles_0, PAGE_0, PAGE_1, TWO,
                )),
            ],
            [4, GATHER_WARPS],
            [MULTIPLY_REGISTERS, GATHER_REGISTERS],
        )  # fmt: skip
