"""Triton kernel of the paged indexer logits, and the device-side schedule of persistent kernels over rows of keys."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# tiles of a program above which it loads a row's query once, before a loop, and not once a tile within the loop
MANY_TILES = tl.constexpr(6)
# one word of the schedule: first tile of a row | row | its length
LENGTH_BITS = tl.constexpr(24)
ROW_BITS = tl.constexpr(13)
MAX_LENGTH = tl.constexpr(2**24 - 1)
MAX_ROW = tl.constexpr(2**13 - 1)
# keys per group of which the largest logit is kept for the top-k: 0.25 bytes a key of traffic
GROUP = 16
# ordered keys: `NOTHING` is below every logit, `UNORDERED` (NaN) is below -inf and above nothing
NOTHING = tl.constexpr(-2147483648)
UNORDERED = tl.constexpr(-2147483647)


@triton.jit
def ordered_key(logit):
    """An int32 for each fp32 that orders as the numbers do; +0.0 and -0.0 are one, NaN is the smallest."""
    bits = logit.to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)
    # the bits of a negative float order backwards, so its magnitude is flipped.
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(logit != logit, UNORDERED, key)


@triton.jit
def longest_lengths(lengths, batch, stride_batch, stride_token, TOKENS: tl.constexpr, ROWS: tl.constexpr):
    """[ROWS] the longest length of each row over its query tokens, 0 past the batch."""
    row = tl.arange(0, ROWS)
    longest = tl.load(lengths + row * stride_batch, mask=row < batch, other=0)
    for token in tl.static_range(1, TOKENS):
        other = tl.load(lengths + row * stride_batch + token * stride_token, mask=row < batch, other=0)
        longest = tl.maximum(longest, other)
    return tl.maximum(longest, 0)


@triton.jit
def share(total):
    """The contiguous range of `total` segments that this program works on."""
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    first = (program * total // programs).to(tl.int32)
    last = ((program + 1) * total // programs).to(tl.int32)
    return first, last


@triton.jit
def schedule_of(longest, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """[ROWS] a word for each row with keys, ascending, -1 for the others; and the number of tiles of BLOCK keys."""
    tiles = tl.cdiv(longest, BLOCK)
    start = (tl.cumsum(tiles, 0) - tiles).to(tl.int64)
    row = tl.arange(0, ROWS).to(tl.int64)
    word = (((start << ROW_BITS) | row) << LENGTH_BITS) | longest.to(tl.int64)
    return tl.where(longest > 0, word, -1), tl.sum(tiles, 0)


@triton.jit
def row_of(tile, schedule):
    """The row that `tile` belongs to, the row's first tile and its length, by one reduction."""
    after = (tl.full((), 1, tl.int64) + tile) << (ROW_BITS + LENGTH_BITS)
    word = tl.max(tl.where(schedule < after, schedule, -1), 0)
    length = (word & MAX_LENGTH).to(tl.int32)
    row = ((word >> LENGTH_BITS) & MAX_ROW).to(tl.int32)
    return row, (word >> (ROW_BITS + LENGTH_BITS)).to(tl.int32), length


@triton.jit
def score_tile(
    keys, table_row, q, w, logits_rows, maxima_rows, start, length, token_lengths, page_stride,
    PADDED_TOKENS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr, FP8: tl.constexpr, MAXIMA: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Logits of the BLOCK keys from `start` of one row, and the largest of each group."""
    # a page is read as a whole, so that one address serves its keys; those past the length are scored for nobody.
    PIECE: tl.constexpr = min(PAGE, BLOCK)
    piece = start + tl.arange(0, BLOCK // PIECE) * PIECE
    exists = piece < length
    page = tl.load(table_row + piece // PAGE, mask=exists, other=0).to(tl.int64)
    within = tl.arange(0, PIECE)
    base = page * page_stride
    if FP8:
        values = keys.to(tl.pointer_type(tl.float8e4nv))
        scale_base = keys.to(tl.pointer_type(tl.float32)) + (page * (page_stride // 4) + PAGE * DIM // 4)
    else:
        values = keys
    if PAGE > BLOCK:
        base += piece % PAGE * DIM
    key = (values + base)[:, None, None] + (within * DIM)[None, :, None] + tl.arange(0, DIM)[None, None, :]
    k = tl.reshape(tl.load(key, mask=exists[:, None, None], other=0.0), (BLOCK, DIM))
    if UPCAST:
        k = k.to(tl.float32)
        q = q.to(tl.float32)
    score = tl.maximum(tl.dot(k, q, out_dtype=tl.float32), 0.0) * w[None, :]
    logit = tl.sum(tl.reshape(score, (BLOCK, PADDED_TOKENS, HEADS)), 2)
    if FP8:
        if PAGE > BLOCK:
            scale_base += piece % PAGE
        scale = tl.load(scale_base[:, None] + within[None, :], mask=exists[:, None], other=0.0)
        logit = logit * tl.reshape(scale, (BLOCK,))[:, None]
    position = start + tl.arange(0, BLOCK)
    scored = position[:, None] < token_lengths[None, :]
    tl.store(logits_rows[None, :] + position[:, None], logit, mask=scored)
    if MAXIMA:
        ordered = tl.where(scored, ordered_key(logit), NOTHING)
        largest = tl.max(tl.reshape(ordered, (BLOCK // GROUP, GROUP, PADDED_TOKENS)), 1)
        group = start // GROUP + tl.arange(0, BLOCK // GROUP)
        tl.store(maxima_rows[None, :] + group[:, None], largest, mask=(group * GROUP)[:, None] < token_lengths[None, :])


# what differs between batches and table widths must not compile anew
@triton.jit(do_not_specialize=["batch", "table_stride"])
def indexer_logits_kernel(
    query, keys, weights, table, lengths, logits, maxima,
    batch,
    query_batch_stride, query_token_stride,
    page_stride,
    weight_batch_stride, weight_token_stride,
    table_stride,
    length_batch_stride, length_token_stride,
    logits_stride, maxima_stride,
    TOKENS: tl.constexpr, PADDED_TOKENS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    FP8: tl.constexpr, MAXIMA: tl.constexpr, UPCAST: tl.constexpr, OVERLAPPED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Persistent over (row, segment of BLOCK keys). A key's logit is the same whichever program computes it.

    query [batch, TOKENS, HEADS, DIM]; keys: bytes for FP8, else bf16, `page_stride` in elements; logits
    [batch * TOKENS, max]; maxima int32 [batch * TOKENS, max / GROUP], ordered keys of each group's largest logit.
    """
    if OVERLAPPED:
        # launched before the previous kernel has ended; the next one may be launched as early.
        gdc_wait()
        gdc_launch_dependents()
    longest = longest_lengths(lengths, batch, length_batch_stride, length_token_stride, TOKENS, ROWS)
    schedule, tiles = schedule_of(longest, BLOCK, ROWS)
    first, last = share(tiles)

    token = tl.arange(0, PADDED_TOKENS)
    slot = tl.arange(0, PADDED_TOKENS * HEADS)
    slot_token, slot_head = slot // HEADS, slot % HEADS
    query_slot = query + (slot_token * query_token_stride + slot_head * DIM)[None, :] + tl.arange(0, DIM)[:, None]
    weight_slot = weights + slot_token * weight_token_stride + slot_head
    asked = slot_token < TOKENS
    # also long enough on average: each row of the first loop begins with an empty pipeline.
    if (last - first >= MANY_TILES) & (tiles >= 4 * batch):
        while first < last:
            row, before, length = row_of(first, schedule)
            stop = tl.minimum(last, before + tl.cdiv(length, BLOCK))
            wide = row.to(tl.int64)
            q = tl.load(query_slot + wide * query_batch_stride, mask=asked[None, :], other=0.0)
            w = tl.load(weight_slot + wide * weight_batch_stride, mask=asked, other=0.0)
            if TOKENS == 1:
                token_lengths = length + token * 0
            else:
                token_length = lengths + wide * length_batch_stride + token * length_token_stride
                token_lengths = tl.load(token_length, mask=token < TOKENS, other=0)
            out_row = wide * TOKENS + token
            for segment in tl.range(first - before, stop - before, num_stages=STAGES):
                score_tile(
                    keys, table + wide * table_stride, q, w,
                    logits + out_row * logits_stride, maxima + out_row * maxima_stride,
                    segment * BLOCK, length, token_lengths, page_stride,
                    PADDED_TOKENS, HEADS, DIM, PAGE, BLOCK, GROUP, FP8, MAXIMA, UPCAST,
                )  # fmt: skip
            first = stop
    else:
        # short rows: one loop over all of them, so that the loads of the next row are in flight during this one.
        for tile in tl.range(first, last, num_stages=3):
            row, before, length = row_of(tile, schedule)
            start = (tile - before) * BLOCK
            wide = row.to(tl.int64)
            # the keys bypass the L1, so a query that serves several tiles stays there.
            q = tl.load(query_slot + wide * query_batch_stride, mask=asked[None, :], other=0.0, cache_modifier=".ca")
            w = tl.load(weight_slot + wide * weight_batch_stride, mask=asked, other=0.0)
            if TOKENS == 1:
                token_lengths = length + token * 0
            else:
                token_length = lengths + wide * length_batch_stride + token * length_token_stride
                token_lengths = tl.load(token_length, mask=token < TOKENS, other=0)
            out_row = wide * TOKENS + token
            score_tile(
                keys, table + wide * table_stride, q, w,
                logits + out_row * logits_stride, maxima + out_row * maxima_stride,
                start, length, token_lengths, page_stride,
                PADDED_TOKENS, HEADS, DIM, PAGE, BLOCK, GROUP, FP8, MAXIMA, UPCAST,
            )  # fmt: skip
