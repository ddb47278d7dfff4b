"""Triton kernels of the exact top-k: group maxima, and one program a row that descends from groups to positions.

Of the `count` best positions by (higher logit, then lower position), each lies in one of the `count` best groups by
(higher maximum, then lower group): were `count` groups ahead of its own, each would hold a position ahead of it. So the
groups are chosen by their maxima first, and then the positions from at most count * GROUP logits. The work is
length / GROUP + count * GROUP whatever the values are; ties cost nothing extra, and nothing depends on timing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pdwatch.kernels.triton_indexer_kernels import NOTHING, longest_lengths, ordered_key, row_of, schedule_of, share

# logits at or below this ordered key, which are -inf and NaN, can be excluded from the choice
MINUS_INFINITY = tl.constexpr(-2139095041)


@triton.jit(do_not_specialize=["rows_count"])
def group_maxima_kernel(
    logits, maxima, lengths, rows_count, logits_stride, maxima_stride,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, EXCLUDE: tl.constexpr,
    WHOLE: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Persistent over (row, segment of BLOCK logits): the ordered key of each group's largest logit."""
    if OVERLAPPED:
        gdc_wait()
        gdc_launch_dependents()
    longest = longest_lengths(lengths, rows_count, 1, 0, 1, ROWS)
    schedule, blocks = schedule_of(longest, BLOCK, ROWS)
    first, last = share(blocks)
    for block in range(first, last):
        row, before, length = row_of(block, schedule)
        group = (block - before) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        position = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        wide = row.to(tl.int64)
        some = group * GROUP < length
        key = load_keys(logits + wide * logits_stride, position, position < length, some[:, None], EXCLUDE, WHOLE)
        tl.store(maxima + wide * maxima_stride + group, tl.max(key, 1), mask=some)


@triton.jit
def load_keys(logits_row, position, exists, some, EXCLUDE: tl.constexpr, WHOLE: tl.constexpr):
    """Ordered keys of the logits at `position` where `exists`, NOTHING elsewhere and where none may be chosen.

    `some` is true for groups of which anything exists. If WHOLE, they are read as a whole, 16 bytes at a time, and what
    does not exist is dropped; it must then belong to the buffer.
    """
    logit = tl.load(logits_row + position, mask=some if WHOLE else exists, other=0.0)
    key = tl.where(exists, ordered_key(logit), NOTHING)
    if EXCLUDE:
        key = tl.where(key <= MINUS_INFINITY, NOTHING, key)
    return key


@triton.jit
def count_from(key, bound):
    return tl.sum((key >= bound).to(tl.int32))


@triton.jit
def value_of(key):
    """The logit that an ordered key stands for, the nearest finite one for infinities and NaN."""
    key = tl.minimum(tl.maximum(key, -2139095040), 2139095039)
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def logarithm(count):
    """About log2(count) * 2**23, for count > 0: the bits of a float are piecewise linear in its logarithm."""
    return count.to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def narrow(key, count, low, bounded, DOUBTFUL: tl.constexpr):
    """Bounds low < high on `key` [nodes, GROUP] with at least `count` keys >= low and fewer >= high.

    `low` is, if `bounded`, a bound known to have at least `count` keys at or above it. Returns (low, high, from_low,
    from_high), the last two the counts of keys at or above them; at most DOUBTFUL keys lie between, or all that do are
    equal, or from_low <= count (exactly `count`, or all that exist).

    False position on the logarithm of the count over the logits (Illinois variant), every fourth step a bisection over
    the keys, which bounds the steps whatever the logits are.
    """
    if not bounded:
        low = tl.min(tl.where(key == NOTHING, 2147483647, key))
    from_low = count_from(key, low)
    high = tl.max(key) + 1
    from_high = 0
    target = logarithm(tl.full((), 1.0, tl.float32) * count)
    excess = logarithm(from_low) - target
    lack = target - logarithm(tl.full((), 0.5, tl.float32))
    step = 0
    side = 0
    while (low + 1 < high) & (from_low > count) & (from_low - from_high > DOUBTFUL):
        part = excess.to(tl.float32) / (excess + lack).to(tl.float32)
        guess = ordered_key(value_of(low) * (1.0 - part) + value_of(high - 1) * part)
        middle = tl.where((step & 3) == 3, (low >> 1) + (high >> 1) + (low & high & 1), guess)
        # dead keys score exactly 0, so that the cut often falls among equal zeros: try both sides of 0 first.
        middle = tl.where((step < 2) & (low < 0) & (high > 0), 0, middle)
        middle = tl.where((step == 0) & (low < 1) & (high > 1), 1, middle)
        middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
        found = count_from(key, middle)
        enough = found >= count
        # an end that stays twice in a row loses half its weight.
        stays_low, stays_high = (~enough) & (side < 0), enough & (side > 0)
        excess = tl.where(enough, logarithm(found) - target, tl.where(stays_low, excess >> 1, excess))
        lack = tl.where(enough, tl.where(stays_high, lack >> 1, lack), target - logarithm(found + 0.5))
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        from_low, from_high = tl.where(enough, found, from_low), tl.where(enough, from_high, found)
        side = tl.where(enough, 1, -1)
        step += 1
    return low, high, from_low, from_high


@triton.jit
def ones_in(set16):
    """How many of the low 16 bits are set."""
    pairs = set16 - ((set16 >> 1) & 0x5555)
    nibbles = (pairs & 0x3333) + ((pairs >> 2) & 0x3333)
    byte = (nibbles + (nibbles >> 4)) & 0x0F0F
    return (byte + (byte >> 8)) & 0x1F


@triton.jit
def sum_and_last(sum_before, last_before, value, last):
    return sum_before + value, last


@triton.jit
def emit(above, equal, node, quota, above_done, equal_done, out, GROUP: tl.constexpr):
    """Write node * GROUP + place of the children in `above` and the first `quota` of those in `equal`, in order.

    above, equal  bool [nodes, GROUP]
    above_done, equal_done  how many of either earlier tiles of the same row held; returns both after this tile
    """
    # a node's children as bits of a word: what follows costs one word a node, not GROUP.
    place = tl.arange(0, GROUP)[None, :]
    sets = tl.sum((above.to(tl.int32) << (place + 16)) + (equal.to(tl.int32) << place), 1)
    counts = (ones_in((sets >> 16) & 0xFFFF) << 16) + ones_in(sets & 0xFFFF)
    # the sets go through the scan only to leave it in the layout of its result.
    ends, sets = tl.associative_scan((counts, sets), 0, sum_and_last)
    above_set, equal_set = (sets >> 16) & 0xFFFF, sets & 0xFFFF
    # both counts in one word: at most 2**15 keys are looked at.
    starts = ends - ((ones_in(above_set) << 16) + ones_in(equal_set))
    equal_rank = (starts & 0xFFFF) + equal_done
    slot = (starts >> 16) + above_done + tl.minimum(equal_rank, quota)
    rest = above_set | equal_set
    for _ in range(tl.max(ones_in(rest), 0)):
        lowest = rest & -rest
        is_equal = (equal_set & lowest) != 0
        taken = (rest != 0) & ((equal_rank < quota) | ~is_equal)
        # the exponent of a power of two.
        child = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        tl.store(out + slot, node * GROUP + child, mask=taken)
        slot += taken.to(tl.int32)
        equal_rank += is_equal.to(tl.int32)
        rest = rest & (rest - 1)
    total = tl.max(tl.where(tl.arange(0, above.shape[0]) == above.shape[0] - 1, ends, 0), 0)
    return above_done + (total >> 16), equal_done + (total & 0xFFFF)


@triton.jit
def settle(key, count, from_high):
    """The count-th largest key, and how many are above it, from the keys in doubt: each compared with each."""
    above = from_high + tl.sum((key[None, :] > key[:, None]).to(tl.int32), 1)
    # it is the smallest of those that have fewer than `count` above them.
    cut = tl.min(tl.where((above < count) & (key != NOTHING), key, 2147483647))
    return cut, tl.min(tl.where(key == cut, above, 2147483647))


@triton.jit
def cut_between(low, high, from_low, from_high, count):
    """(bound, quota): the best are all keys >= bound and the first `quota` of those that equal bound - 1."""
    tied = from_low > count
    return tl.where(tied, high, low), tl.where(tied, count - from_high, 0)


@triton.jit
def choose_groups(maxima_row, scratch, groups, count, NODES: tl.constexpr, GROUP: tl.constexpr, DOUBTFUL: tl.constexpr):
    """Replace a row's maxima by its best `count` groups, ascending; returns how many, and a bound of their maxima."""
    node = tl.arange(0, NODES)
    group = node[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    # rows of maxima are whole groups of groups, so that 16 bytes can be read at a time.
    key = tl.load(maxima_row + group, mask=(node * GROUP < groups)[:, None], other=NOTHING)
    key = tl.where(group < groups, key, NOTHING)
    unknown = tl.full((), 0, tl.int32)
    low, high, from_low, from_high = narrow(key, count, unknown, unknown != 0, DOUBTFUL)
    if (low + 1 < high) & (from_low > count):
        emit((key >= low) & (key < high), key != key, node, 0, 0, 0, scratch, GROUP)
        tl.debug_barrier()
        seat = tl.arange(0, DOUBTFUL)
        doubtful = tl.load(scratch + seat, mask=seat < from_low - from_high, other=0)
        rival = tl.load(maxima_row + doubtful, mask=seat < from_low - from_high, other=NOTHING)
        low, from_high = settle(rival, count, from_high)
        high = low + 1
    bound, quota = cut_between(low, high, from_low, from_high, count)
    # every thread has read its maxima before any is overwritten.
    tl.debug_barrier()
    emit(key >= bound, key == bound - 1, node, quota, 0, 0, maxima_row, GROUP)
    tl.debug_barrier()
    # fewer groups than asked for have a logit at all: their maxima bound nothing.
    return tl.minimum(from_low, count), tl.where(from_low < count, NOTHING + 1, low)


@triton.jit
def children_of(maxima_row, first, nodes, chosen_first, NODES: tl.constexpr, GROUP: tl.constexpr):
    """NODES nodes from the `first`, the positions [NODES, GROUP] below them, and [NODES, 1] which are nodes at all."""
    slot = first + tl.arange(0, NODES)
    node = slot
    if chosen_first:
        node = tl.load(maxima_row + slot, mask=slot < nodes, other=0)
    return node, node[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (slot < nodes)[:, None]


@triton.jit(do_not_specialize=["table_stride"])
def choose_positions_kernel(
    logits, maxima, lengths, chosen, table,
    tokens,
    length_batch_stride, length_token_stride,
    logits_stride, maxima_stride, chosen_stride, table_stride,
    COUNT: tl.constexpr, NODES: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr, TILE: tl.constexpr,
    GROUP: tl.constexpr, SLOTS: tl.constexpr, PAGE: tl.constexpr, EXCLUDE: tl.constexpr, WHOLE: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """One program a row: the COUNT best positions below its length, ascending, then -1. The maxima are overwritten.

    NODES is COUNT rounded up to a power of two, FEW * GROUP and MANY * GROUP are the groups that the two sizes of the
    first step can look at, TILE the nodes whose children are written at a time (registers bound it).
    """
    row = tl.program_id(0).to(tl.int64)
    # as many as fit into the row of `chosen`, which is their scratch.
    DOUBTFUL: tl.constexpr = min(64, NODES // 2 if NODES > COUNT else NODES)
    batch_row = row // tokens
    length = tl.load(lengths + batch_row * length_batch_stride + row % tokens * length_token_stride)
    length = tl.maximum(length, 0)
    slot = tl.arange(0, NODES)
    logits_row = logits + row * logits_stride
    maxima_row = maxima + row * maxima_stride
    chosen_row = chosen + row * chosen_stride
    if OVERLAPPED:
        # the lengths were there before the kernel that is waited for began; its logits are there only now.
        gdc_wait()
        gdc_launch_dependents()
    found = tl.minimum(length, COUNT)
    searched = (length > COUNT) | EXCLUDE
    if searched:
        nodes = tl.cdiv(length, GROUP)
        low = tl.full((), NOTHING + 1, tl.int32)
        descend = nodes > COUNT
        if descend:
            if FEW < MANY and nodes <= FEW * GROUP:
                nodes, low = choose_groups(maxima_row, chosen_row, nodes, COUNT, FEW, GROUP, DOUBTFUL)
            else:
                nodes, low = choose_groups(maxima_row, chosen_row, nodes, COUNT, MANY, GROUP, DOUBTFUL)
        node, position, exists = children_of(maxima_row, 0, nodes, descend, NODES, GROUP)
        key = load_keys(logits_row, position, exists & (position < length), exists, EXCLUDE, WHOLE)
        low, high, from_low, from_high = narrow(key, COUNT, low, descend, DOUBTFUL)
        if (low + 1 < high) & (from_low > COUNT):
            if TILE >= NODES:
                emit((key >= low) & (key < high), key != key, node, 0, 0, 0, chosen_row, GROUP)
            else:
                stored = 0
                for first in range(0, NODES, TILE):
                    parent, child, is_child = children_of(maxima_row, first, nodes, descend, TILE, GROUP)
                    child_key = load_keys(logits_row, child, is_child & (child < length), is_child, EXCLUDE, WHOLE)
                    between = (child_key >= low) & (child_key < high)
                    stored, _ = emit(between, child_key != child_key, parent, 0, stored, 0, chosen_row, GROUP)
            tl.debug_barrier()
            seat = tl.arange(0, DOUBTFUL)
            doubtful = tl.load(chosen_row + seat, mask=seat < from_low - from_high, other=0)
            is_seat = seat < from_low - from_high
            low, from_high = settle(load_keys(logits_row, doubtful, is_seat, is_seat, EXCLUDE, False), COUNT, from_high)
            high = low + 1
            # what is in doubt is read before the result overwrites it.
            tl.debug_barrier()
        found = tl.minimum(from_low, COUNT)
        bound, quota = cut_between(low, high, from_low, from_high, COUNT)
        if TILE >= NODES:
            emit(key >= bound, key == bound - 1, node, quota, 0, 0, chosen_row, GROUP)
        else:
            above, equal = 0, 0
            for first in range(0, NODES, TILE):
                parent, child, is_child = children_of(maxima_row, first, nodes, descend, TILE, GROUP)
                child_key = load_keys(logits_row, child, is_child & (child < length), is_child, EXCLUDE, WHOLE)
                above, equal = emit(
                    child_key >= bound, child_key == bound - 1, parent, quota, above, equal, chosen_row, GROUP
                )
    # what a long row chose is already in place, unless it needs -1 behind it or its positions are to become slots.
    if SLOTS or EXCLUDE or length <= COUNT:
        best = slot
        if searched:
            tl.debug_barrier()
            best = tl.load(chosen_row + slot, mask=slot < found, other=0)
            # several threads may have read the same word, and only one writes it.
            tl.debug_barrier()
        if SLOTS:
            page = tl.load(table + batch_row * table_stride + best // PAGE, mask=slot < found, other=0)
            best = page * PAGE + best % PAGE
        tl.store(chosen_row + slot, tl.where(slot < found, best, -1), mask=slot < COUNT)
