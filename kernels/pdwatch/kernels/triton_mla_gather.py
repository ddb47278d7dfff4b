"""The gathering half of the Hopper kernel: V4's fp8 rows of the KV cache into bfloat16 panels in shared memory."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

TILE = gl.constexpr(128)
GATHER_WARPS = gl.constexpr(8)
_WORDS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
# rows as 32-bit words: four threads a row, 64 bytes of values or 128 of rope.
_VALUES = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [8, 1], [1, 0]))
_ROPE = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [8, 1], [1, 0]))
_ROWS = gl.constexpr(gl.SliceLayout(1, _VALUES))


@gluon.jit
def _load_values(pages, data, valid, START: gl.constexpr):
    """64 e4m3 columns of rows, four to a word."""
    columns = gl.max_contiguous(gl.arange(0, 16, layout=gl.SliceLayout(0, _VALUES)), 4)
    at = (pages + data + START).to(gl.pointer_type(gl.int32))[:, None] + columns[None, :]
    return gl.load(gl.multiple_of(at, [1, 16]), mask=valid[:, None], other=0)


@gluon.jit
def _load_rope(pages, data, valid):
    """64 bf16 columns of rows, two to a word."""
    columns = gl.max_contiguous(gl.arange(0, 32, layout=gl.SliceLayout(0, _ROPE)), 8)
    data = gl.convert_layout(data, gl.SliceLayout(1, _ROPE), assert_trivial=True)
    valid = gl.convert_layout(valid, gl.SliceLayout(1, _ROPE), assert_trivial=True)
    at = (pages + data + 448).to(gl.pointer_type(gl.int32))[:, None] + columns[None, :]
    return gl.load(gl.multiple_of(at, [1, 16]), mask=valid[:, None], other=0)


@gluon.jit
def _store_values(panel, words, scale):
    """e4m3 words times the rows' `scale` as bfloat16 into a panel."""
    low, high = gl.inline_asm_elementwise(
        """{
        .reg .b16 a, b, h0, h1, h2, h3;
        .reg .b32 p, q;
        .reg .f32 f0, f1, f2, f3;
        mov.b32 {a, b}, $2;
        cvt.rn.f16x2.e4m3x2 p, a;
        cvt.rn.f16x2.e4m3x2 q, b;
        mov.b32 {h0, h1}, p;
        mov.b32 {h2, h3}, q;
        cvt.f32.f16 f0, h0;
        cvt.f32.f16 f1, h1;
        cvt.f32.f16 f2, h2;
        cvt.f32.f16 f3, h3;
        mul.f32 f0, f0, $3;
        mul.f32 f1, f1, $3;
        mul.f32 f2, f2, $3;
        mul.f32 f3, f3, $3;
        cvt.rn.bf16x2.f32 $0, f1, f0;
        cvt.rn.bf16x2.f32 $1, f3, f2;
        }""",
        "=&r,=&r,r,f",
        [words, scale[:, None]],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    panel._reinterpret(gl.int32, [64, 32], _WORDS).store(gl.reshape(gl.join(low, high), [64, 32]))


@gluon.jit
def _store_rope(panel, words):
    panel._reinterpret(gl.int32, [64, 32], _WORDS).store(words)


@gluon.jit
def _scale(word, shift: gl.constexpr):
    """UE8M0: 2^(byte - 127); byte 0 is the subnormal 2^-127, 255 is NaN."""
    byte = ((word >> shift) & 255).to(gl.int32)
    bits = gl.where(byte == 0, 0x400000, gl.where(byte == 255, 0x7FC00000, byte << 23))
    return bits.to(gl.float32, bitcast=True)


@gluon.jit
def _locate(index, page_stride, PAGE: gl.constexpr):
    """Byte offsets of rows and of their scales in the pool."""
    page = index // PAGE
    offset = index - page * PAGE
    start = page.to(gl.int64) * page_stride
    return gl.multiple_of(start + offset * 576, 16), gl.multiple_of(start + PAGE * 576 + offset * 8, 8)


@gluon.jit
def _gather(
    k0, k1, k2, k3, absent, full, empty, pages, page_stride, indices, length, first, last, before, PAGE: gl.constexpr,
):  # fmt: skip
    """Tiles first..last of one scope into panels, zeros where there is no row, and into `absent` 1 for each such row.

    Half h of a tile has its panel j at place 2h + j // 4 of buffer j % 4: what is free and what a store may touch is
    told by the buffer. Registers that have been decoded take the columns of the next half at once. `before` tiles of
    the program came before `first`.
    """
    place = first * TILE + gl.arange(0, 64, layout=_ROWS)
    index = gl.load(indices + place, mask=(place < length) & (first < last), other=-1)
    valid = index >= 0
    data, scales = _locate(index, page_stride, PAGE)
    word = gl.load((pages + scales).to(gl.pointer_type(gl.int64)), mask=valid, other=0)
    r0 = _load_values(pages, data, valid, 0)
    r4 = _load_values(pages, data, valid, 256)
    r1 = _load_values(pages, data, valid, 64)
    r5 = _load_values(pages, data, valid, 320)
    r2 = _load_values(pages, data, valid, 128)
    r6 = _load_values(pages, data, valid, 384)
    r3 = _load_values(pages, data, valid, 192)
    rope = _load_rope(pages, data, valid)
    place += 64
    index = gl.load(indices + place, mask=(place < length) & (first < last), other=-1)
    for part in range(first * 2, last * 2):
        half = part & 1
        phase = ((part // 2 - first + before) & 1) ^ 1
        left = half * 2
        right = half * 2 + 1
        missing = gl.where(valid, 0, 1)
        valid = index >= 0
        data, scales = _locate(index, page_stride, PAGE)
        place += 64
        index = gl.load(indices + place, mask=(place < length) & (part + 2 < last * 2), other=-1)
        mbarrier.wait(empty.index(0), phase)
        _store_values(k0.index(left), r0, _scale(word, 0))
        r0 = _load_values(pages, data, valid, 0)
        _store_values(k0.index(right), r4, _scale(word, 32))
        r4 = _load_values(pages, data, valid, 256)
        mbarrier.wait(empty.index(1), phase)
        _store_values(k1.index(left), r1, _scale(word, 8))
        r1 = _load_values(pages, data, valid, 64)
        _store_values(k1.index(right), r5, _scale(word, 40))
        r5 = _load_values(pages, data, valid, 320)
        mbarrier.wait(empty.index(2), phase)
        _store_values(k2.index(left), r2, _scale(word, 16))
        r2 = _load_values(pages, data, valid, 128)
        _store_values(k2.index(right), r6, _scale(word, 48))
        r6 = _load_values(pages, data, valid, 384)
        mbarrier.wait(empty.index(3), phase)
        _store_values(k3.index(left), r3, _scale(word, 24))
        r3 = _load_values(pages, data, valid, 192)
        _store_rope(k3.index(right), rope)
        word = gl.load((pages + scales).to(gl.pointer_type(gl.int64)), mask=valid, other=0)
        rope = _load_rope(pages, data, valid)
        absent.index(half).store(missing)
        fence_async_shared()
        mbarrier.arrive(full.index(half), count=1)


@gluon.jit
def gather_scopes(
    k0, k1, k2, k3, absent, full, empty, pages_0, page_stride_0, indices_0, length_0, pages_1, page_stride_1,
    indices_1, length_1, first, last, tiles_0, PAGE_0: gl.constexpr, PAGE_1: gl.constexpr, TWO: gl.constexpr,
):  # fmt: skip
    """Tiles first..last of the row, those of the first scope before those of the second."""
    if TWO:
        _gather(k0, k1, k2, k3, absent, full, empty, pages_0, page_stride_0, indices_0, length_0, first,
                gl.minimum(last, tiles_0), 0, PAGE_0)  # fmt: skip
        start = gl.maximum(first, tiles_0)
        _gather(k0, k1, k2, k3, absent, full, empty, pages_1, page_stride_1, indices_1, length_1, start - tiles_0,
                last - tiles_0, start - first, PAGE_1)  # fmt: skip
    else:
        _gather(k0, k1, k2, k3, absent, full, empty, pages_0, page_stride_0, indices_0, length_0, first, last, 0,
                PAGE_0)  # fmt: skip
