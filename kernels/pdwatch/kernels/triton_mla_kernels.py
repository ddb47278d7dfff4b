"""The sparse MLA decode kernel: scores, tile softmax and weighted sum of one range of KV rows.

The arithmetic is fixed by tiles, the schedule is not. A tile of KV rows has its own softmax state: unit exponent `m`
(an integer, so that scales between tiles are powers of two and exact), sum `l` and sum of rows `o`, each from zero. The
states of a group of tiles are folded in order, then those of the groups (`fold_factors`). Which program computes a
tile, and whether it folds in registers or through the workspace, changes no bit of the result.

fp8 rows are multiplied as float16: e4m3 is exact in it, and a row's scales enter relative to the row's largest power of
two 2^w, which is applied to scores and weights instead. Queries become float16 relative to a power of two of each head.
What of V3.2's scales is no power of two is never multiplied into a value: each block of 128 columns has its own scores,
and its own weights, times that factor. So scores are exact but for float32 sums, and a weight is rounded once, to 11
bits. Scales are taken to lie between 2^-60 and 2^60, those of a row within 2^15 of each other; below, their columns
lose bits.

Weights of fp8 rows, times the row's 2^w, are lost below 2^-39 of the tile's largest (float16), states below 2^-64 of
the largest: an output misses at most keys * 2^-39 of the largest product of a weight and an element of its row. That
shows only where the rows that matter hold zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

# beyond 2^-64 of the unit a state adds nothing that float32 could hold.
_FAR = tl.constexpr(-64.0)
# float16 weights are stored times 2^15: 1 becomes the largest power of two there is, and 2^-39 is not lost.
_WEIGHT_UNIT = tl.constexpr(32768.0)


@triton.jit
def power_of_two(exponent):
    """2^exponent, exact, for int32 in -126..127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def fold_factors(m, m_next):
    """Unit of two states with units 2^m and 2^m_next, and the powers of two that bring each to it."""
    unit = tl.maximum(m, m_next)
    zero = tl.where(unit == float("-inf"), 0.0, unit)
    old, new = m - zero, m_next - zero
    keep = tl.where(old < _FAR, 0.0, power_of_two(tl.maximum(old, _FAR).to(tl.int32)))
    add = tl.where(new < _FAR, 0.0, power_of_two(tl.maximum(new, _FAR).to(tl.int32)))
    return unit, keep, add


@triton.jit
def normaliser(m, total, sink, HAS_SINK: tl.constexpr):
    """What turns a state's sum of rows into the output; 0 for an empty state."""
    weight = total
    if HAS_SINK:
        weight += tl.exp2(sink * 1.4426950408889634 - m)
    return tl.where(total == 0.0, 0.0, 1.0 / weight)


@triton.jit
def _beside(left, right):
    """[rows, 64] and [rows, 64] as [rows, 128], without moving data between threads."""
    pair = tl.permute(tl.join(left, right), (0, 2, 1))
    return tl.reshape(pair, (left.shape[0], 2 * left.shape[1]))


@triton.jit
def _decoded(pointers, mask):
    """64 columns of e4m3 as float16."""
    return tl.load(pointers, mask=mask, other=0).to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def _byte_ratio(word, shift: tl.constexpr, w):
    byte = ((word >> shift) & 255).to(tl.int32)
    return tl.where(byte == 255, float("nan"), power_of_two(tl.maximum(byte - 127 - w, -126))).to(tl.float16)[:, None]


@triton.jit
def _largest_byte(word):
    largest = (word & 255).to(tl.int32)
    for shift in tl.static_range(8, 56, 8):
        largest = tl.maximum(largest, ((word >> shift) & 255).to(tl.int32))
    return largest


@triton.jit
def _rows_fp8_v4(base, data, scales, valid):
    """Blocks of 128, 128, 128, 64 nope columns, 64 rope columns, and the row exponents w."""
    word = tl.load((base + scales).to(tl.pointer_type(tl.int64)), mask=valid, other=0)
    w = tl.minimum(tl.maximum(_largest_byte(word) - 127, -60), 60)
    mask = valid[:, None]
    columns = tl.arange(0, 64)[None, :]
    at = base + data[:, None] + columns
    c0 = _decoded(at, mask) * _byte_ratio(word, 0, w)
    c1 = _decoded(at + 64, mask) * _byte_ratio(word, 8, w)
    c2 = _decoded(at + 128, mask) * _byte_ratio(word, 16, w)
    c3 = _decoded(at + 192, mask) * _byte_ratio(word, 24, w)
    c4 = _decoded(at + 256, mask) * _byte_ratio(word, 32, w)
    c5 = _decoded(at + 320, mask) * _byte_ratio(word, 40, w)
    k3 = _decoded(at + 384, mask) * _byte_ratio(word, 48, w)
    rope = tl.load((base + data + 448).to(tl.pointer_type(tl.bfloat16))[:, None] + columns, mask=mask, other=0.0)
    return _beside(c0, c1), _beside(c2, c3), _beside(c4, c5), k3, rope, w


@triton.jit
def _exponent(scale):
    """e with abs(scale) in 2^(e-1)..2^e, or less where scale is subnormal; 126 at most."""
    return tl.minimum(((scale.to(tl.int32, bitcast=True) >> 23) & 255) - 126, 126)


@triton.jit
def _ratio(e, w):
    return power_of_two(tl.maximum(e - w, -126)).to(tl.float16)[:, None]


@triton.jit
def _rows_fp8_v32(base, data, valid):
    """Four blocks of 128 latent columns, 64 rope columns, the row exponents w, and the factor that each block lacks."""
    words = (base + data + 512).to(tl.pointer_type(tl.float32))
    s0 = tl.load(words, mask=valid, other=0.0)
    s1 = tl.load(words + 1, mask=valid, other=0.0)
    s2 = tl.load(words + 2, mask=valid, other=0.0)
    s3 = tl.load(words + 3, mask=valid, other=0.0)
    e0, e1, e2, e3 = _exponent(s0), _exponent(s1), _exponent(s2), _exponent(s3)
    w = tl.maximum(tl.maximum(e0, e1), tl.maximum(e2, e3))
    w = tl.minimum(tl.maximum(w, -60), 60)
    mask = valid[:, None]
    columns = tl.arange(0, 64)[None, :]
    at = base + data[:, None] + columns
    k0 = _beside(_decoded(at, mask) * _ratio(e0, w), _decoded(at + 64, mask) * _ratio(e0, w))
    k1 = _beside(_decoded(at + 128, mask) * _ratio(e1, w), _decoded(at + 192, mask) * _ratio(e1, w))
    k2 = _beside(_decoded(at + 256, mask) * _ratio(e2, w), _decoded(at + 320, mask) * _ratio(e2, w))
    k3 = _beside(_decoded(at + 384, mask) * _ratio(e3, w), _decoded(at + 448, mask) * _ratio(e3, w))
    rope = tl.load((base + data + 528).to(tl.pointer_type(tl.bfloat16))[:, None] + columns, mask=mask, other=0.0)
    f0, f1, f2, f3 = s0 * power_of_two(-e0), s1 * power_of_two(-e1), s2 * power_of_two(-e2), s3 * power_of_two(-e3)
    return k0, k1, k2, k3, rope, w, f0, f1, f2, f3


@triton.jit
def _rows_bf16(base, data, valid, LAST: tl.constexpr, UPCAST: tl.constexpr):
    """Blocks of 128, 128, 128, LAST nope columns and 64 rope columns."""
    mask = valid[:, None]
    at = (base + data).to(tl.pointer_type(tl.bfloat16))[:, None] + tl.arange(0, 128)[None, :]
    k0 = tl.load(at, mask=mask, other=0.0)
    k1 = tl.load(at + 128, mask=mask, other=0.0)
    k2 = tl.load(at + 256, mask=mask, other=0.0)
    start = (base + data + 768).to(tl.pointer_type(tl.bfloat16))[:, None]
    k3 = tl.load(start + tl.arange(0, LAST)[None, :], mask=mask, other=0.0)
    rope = tl.load(start + LAST + tl.arange(0, 64)[None, :], mask=mask, other=0.0)
    if UPCAST:
        return k0.to(tl.float32), k1.to(tl.float32), k2.to(tl.float32), k3.to(tl.float32), rope
    return k0, k1, k2, k3, rope


@triton.jit
def _query(pointer, mask, unit, FP8: tl.constexpr, UPCAST: tl.constexpr):
    """A block of query columns; for fp8 rows as float16 times the heads' `unit`."""
    value = tl.load(pointer, mask=mask, other=0.0)
    if UPCAST:
        value = value.to(tl.float32)
    if FP8:
        value = (value.to(tl.float32) * unit[:, None]).to(tl.float16)
    return value


@triton.jit
def _peak(pointer, mask):
    return tl.max(tl.abs(tl.load(pointer, mask=mask, other=0.0).to(tl.float32)), axis=1)


@triton.jit
def _store(out, block, inverse, mask, FINAL: tl.constexpr):
    if FINAL:
        tl.store(out, (block * inverse[:, None]).to(out.dtype.element_ty), mask=mask)
    else:
        tl.store(out, block, mask=mask)


@triton.jit
def sparse_mla_kernel(
    query, out, lse, sink, partial, stats,
    pages_0, indices_0, lengths_0, page_stride_0, index_stride_0, index_token_stride_0, count_0,
    pages_1, indices_1, lengths_1, page_stride_1, index_stride_1, index_token_stride_1, count_1,
    query_stride, query_token_stride, query_head_stride, out_stride, out_token_stride, out_head_stride,
    scale, heads, query_tokens, head_blocks, units,
    FP8: tl.constexpr, V4: tl.constexpr, PAGE_0: tl.constexpr, PAGE_1: tl.constexpr, TWO: tl.constexpr,
    LENGTHS_0: tl.constexpr, LENGTHS_1: tl.constexpr, HAS_SINK: tl.constexpr, FINAL: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_H: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One head block of one query token over CHUNK tiles, from tile unit * CHUNK on.

    Grid: units * head blocks * rows, the first fastest; a row is one query token of one request. `scale` makes scores
    powers of two. FINAL: one unit is the whole row, write out and lse; else write the unit's state, float32, for the
    merge kernel. UPCAST: the interpreter multiplies bfloat16 wrongly, so bfloat16 operands become float32.
    """
    program = tl.program_id(0)
    unit = program % units
    head_block = program // units % head_blocks
    row = program // units // head_blocks
    LAST: tl.constexpr = 64 if V4 else 128
    ROW_BYTES: tl.constexpr = (576 if V4 else 656) if FP8 else (1024 if V4 else 1152)
    batch = row // query_tokens
    token = row % query_tokens
    length_0 = count_0
    if LENGTHS_0:
        length_0 = tl.minimum(tl.load(lengths_0 + batch), count_0)
    tiles_0 = tl.cdiv(tl.maximum(length_0, 0), TILE)
    tiles = tiles_0
    length_1 = 0
    if TWO:
        length_1 = count_1
        if LENGTHS_1:
            length_1 = tl.minimum(tl.load(lengths_1 + batch), count_1)
        tiles += tl.cdiv(tl.maximum(length_1, 0), TILE)
    first = unit * CHUNK
    last = tl.minimum(first + CHUNK, tiles)
    if first >= last and unit > 0:
        return

    batch = batch.to(tl.int64)
    index_0 = indices_0 + batch * index_stride_0 + token * index_token_stride_0
    index_1 = indices_1 + batch * index_stride_1 + token * index_token_stride_1
    # one address stream for both scopes keeps one loop.
    page_gap = pages_1.to(tl.int64) - pages_0.to(tl.int64)
    page_gap = tl.multiple_of(page_gap, 16)

    head = head_block * BLOCK_H + tl.arange(0, BLOCK_H)
    there = head < heads
    mask_h = there[:, None]
    at = query + batch * query_stride + token * query_token_stride + head[:, None] * query_head_stride
    wide = tl.arange(0, 128)[None, :]
    narrow = tl.arange(0, 64)[None, :]
    last_columns = tl.arange(0, LAST)[None, :]
    head_scale = tl.full([BLOCK_H], 1.0, tl.float32)
    head_unit = head_scale
    if FP8:
        peak = tl.maximum(_peak(at + wide, mask_h), _peak(at + 128 + wide, mask_h))
        peak = tl.maximum(peak, _peak(at + 256 + wide, mask_h))
        peak = tl.maximum(peak, _peak(at + 384 + last_columns, mask_h))
        exponent = ((peak.to(tl.int32, bitcast=True) >> 23) & 255) - 127 - 14
        exponent = tl.minimum(tl.maximum(exponent, -100), 100)
        head_scale = power_of_two(exponent) * scale
        head_unit = power_of_two(-exponent)
    q0 = _query(at + wide, mask_h, head_unit, FP8, UPCAST)
    q1 = _query(at + 128 + wide, mask_h, head_unit, FP8, UPCAST)
    q2 = _query(at + 256 + wide, mask_h, head_unit, FP8, UPCAST)
    q3 = _query(at + 384 + last_columns, mask_h, head_unit, FP8, UPCAST)
    qr = _query(at + 384 + LAST + narrow, mask_h, head_unit, False, UPCAST)

    m = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    a0 = tl.zeros([BLOCK_H, 128], tl.float32)
    a1 = tl.zeros([BLOCK_H, 128], tl.float32)
    a2 = tl.zeros([BLOCK_H, 128], tl.float32)
    a3 = tl.zeros([BLOCK_H, LAST], tl.float32)
    ar = tl.zeros([BLOCK_H, 64], tl.float32)
    places = tl.arange(0, TILE)
    for tile in tl.range(first, last, num_stages=STAGES):
        if TWO:
            second = tile >= tiles_0
            place = tl.where(second, tile - tiles_0, tile) * TILE + places
            inside = place < tl.where(second, length_1, length_0)
            # pointers of two tensors: the address of the one that this tile is in.
            index = tl.load(tl.where(second, index_1, index_0) + place, mask=inside, other=-1)
            page = tl.where(second, index // PAGE_1, index // PAGE_0)
            size = tl.where(second, PAGE_1, PAGE_0)
            stride = tl.where(second, page_stride_1, page_stride_0)
            start = page.to(tl.int64) * stride + tl.where(second, page_gap, 0)
        else:
            place = tile * TILE + places
            index = tl.load(index_0 + place, mask=place < length_0, other=-1)
            page = index // PAGE_0
            size = PAGE_0
            start = page.to(tl.int64) * page_stride_0
        valid = index >= 0
        offset = index - page * size
        data = tl.multiple_of(start + offset * ROW_BYTES, 16)
        w = tl.zeros([TILE], tl.int32)
        if FP8 and V4:
            scales = tl.multiple_of(start + size * 576 + offset * 8, 8)
            k0, k1, k2, k3, kr, w = _rows_fp8_v4(pages_0, data, scales, valid)
        elif FP8:
            k0, k1, k2, k3, kr, w, f0, f1, f2, f3 = _rows_fp8_v32(pages_0, data, valid)
        else:
            k0, k1, k2, k3, kr = _rows_bf16(pages_0, data, valid, LAST, UPCAST)
        if UPCAST:
            kr = kr.to(tl.float32)

        if FP8 and not V4:
            s = tl.dot(q0, tl.trans(k0)) * f0[None, :]
            s += tl.dot(q1, tl.trans(k1)) * f1[None, :]
            s += tl.dot(q2, tl.trans(k2)) * f2[None, :]
            s += tl.dot(q3, tl.trans(k3)) * f3[None, :]
        else:
            s = tl.dot(q0, tl.trans(k0))
            s = tl.dot(q1, tl.trans(k1), s)
            s = tl.dot(q2, tl.trans(k2), s)
            s = tl.dot(q3, tl.trans(k3), s)
        if FP8:
            s_rope = tl.dot(qr, tl.trans(kr))
            # x is the score in powers of two plus w: the weight in the sum of rows that lack their 2^w.
            x = s * head_scale[:, None] * power_of_two(w)[None, :] + s_rope * scale + w.to(tl.float32)[None, :]
        else:
            s = tl.dot(qr, tl.trans(kr), s)
            x = s * scale
        # chosen, not added: the query of a row without keys may be NaN.
        x = tl.where(valid[None, :], x, float("-inf"))
        m_tile = tl.ceil(tl.max(x, axis=1))
        x = x - tl.where(m_tile == float("-inf"), 0.0, m_tile)[:, None]
        p = tl.exp2(x)
        plain = p
        if FP8:
            plain = p * power_of_two(-w)[None, :]
        m, keep, add = fold_factors(m, m_tile)
        total = tl.fma(tl.sum(plain, axis=1), add, total * keep)
        keep = keep[:, None]
        add = add[:, None]
        if V4 and not UPCAST:
            plain = plain.to(tl.bfloat16)
        if V4:
            ar = ar * keep + tl.dot(plain, kr) * add
        if FP8:
            p = p * _WEIGHT_UNIT
            add = add * (1.0 / _WEIGHT_UNIT)
        if FP8 and not V4:
            a0 = a0 * keep + tl.dot((p * f0[None, :]).to(tl.float16), k0) * add
            a1 = a1 * keep + tl.dot((p * f1[None, :]).to(tl.float16), k1) * add
            a2 = a2 * keep + tl.dot((p * f2[None, :]).to(tl.float16), k2) * add
            a3 = a3 * keep + tl.dot((p * f3[None, :]).to(tl.float16), k3) * add
        else:
            p = p.to(k0.dtype)
            a0 = a0 * keep + tl.dot(p, k0) * add
            a1 = a1 * keep + tl.dot(p, k1) * add
            a2 = a2 * keep + tl.dot(p, k2) * add
            a3 = a3 * keep + tl.dot(p, k3) * add

    row = row.to(tl.int64)
    if FINAL:
        bias = total
        if HAS_SINK:
            bias = tl.load(sink + head, mask=there, other=0.0)
        inverse = normaliser(m, total, bias, HAS_SINK)
        target = out + batch * out_stride + token * out_token_stride + head[:, None] * out_head_stride
        tl.store(lse + row * heads + head, (m + tl.log2(total)) * 0.6931471805599453, mask=there)
    else:
        inverse = total
        state = (row * units + unit) * heads + head
        target = partial + state[:, None] * 512
        tl.store(stats + state * 2, m, mask=there)
        tl.store(stats + state * 2 + 1, total, mask=there)
    _store(target + wide, a0, inverse, mask_h, FINAL)
    _store(target + 128 + wide, a1, inverse, mask_h, FINAL)
    _store(target + 256 + wide, a2, inverse, mask_h, FINAL)
    _store(target + 384 + last_columns, a3, inverse, mask_h, FINAL)
    if V4:
        _store(target + 448 + narrow, ar, inverse, mask_h, FINAL)
