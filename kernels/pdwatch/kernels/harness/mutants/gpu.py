"""Mutants that need a GPU: streams, pools, captures of real graphs, atomics, time."""

from __future__ import annotations

from pdwatch.kernels.harness.kernel import KernelUnderTest
from pdwatch.kernels.harness.mutants.base import Mutant
from pdwatch.kernels.harness.mutants.paged_sum import PagedSum, paged_sum_under_test
from pdwatch.kernels.harness.mutants.two_streams import Order, two_streams_under_test


def _sum(name: str, bug: str, what: str, *killed_by: str, **flags: bool) -> Mutant:
    def make() -> KernelUnderTest:
        return paged_sum_under_test(PagedSum(**flags), f"mutant.{name}")

    return Mutant(name, bug, what, killed_by, make, "cuda")


def _streams(bug: str, what: str, order: Order, *killed_by: str) -> Mutant:
    name = f"two_streams_{order.name.lower()}"
    return Mutant(name, bug, what, killed_by, two_streams_under_test(order), "cuda")


MUTANTS = (
    _sum("int32_offsets", "B14", "The offset of a page is a 32-bit product.", "int64", narrow=True),
    _sum(
        "whole_width", "B13", "The loop runs over the table's width and masks.", "slope_maximum", "slope_length",
        whole_width=True,
    ),
    _sum("unmasked_load", "B16", "Page tails are multiplied by zero.", "poison", unmasked=True),
    _sum("atomic_sum", "determinism", "Splits add atomically.", "determinism", atomic=True),
    _sum("splits_by_batch", "B9", "The split follows the batch.", "batch_invariance", splits_by_batch=True),
    _sum("splits_by_host", "B9, B10", "The grid follows the lengths at capture.", "capture_lint", splits_by_host=True),
    _sum("allocates", "B8", "Scratch is allocated in every run.", "capture_lint", allocates=True),
    _sum("shares_scratch", "B5", "All streams use one scratch.", "concurrent", shares=True),
    _sum("synchronises", "B7", "The host asks whether a length is negative.", "capture_lint", synchronises=True),
    _sum("lengths_by_host", "B7", "Lengths are copied to the host and back.", "capture_lint", copies=True),
    _streams(
        "B4", "H1: a transient is freed before the side stream has read it.", Order.DROPPED_EARLY,
        "stream_order", "stream_delay", "stream_keep_alive",
    ),
    _streams(
        "B1, B2", "H2: a result of the side stream is freed while the main stream reads it.", Order.RESULT_DROPPED,
        "stream_order", "stream_delay", "stream_keep_alive",
    ),
    _streams("B2", "The fork is recorded too early.", Order.FORKED_EARLY, "stream_order", "stream_delay"),
    _streams("B3", "The result is read before the join.", Order.JOINED_LATE, "stream_order", "stream_delay"),
    _streams("B3, B5", "Both branches write to one block.", Order.SCRATCH_SHARED, "stream_order", "stream_delay"),
    _streams("B6", "H3: the result lies in freed memory of the pool.", Order.RESULT_UNOWNED, "pool_sharing"),
)  # fmt: skip


def good_kernels() -> list[KernelUnderTest]:
    """What the mutants are made from, without their bugs."""
    orders = (Order.JOINED, Order.RECORDED, Order.ONE_STREAM)
    return [paged_sum_under_test(PagedSum()), *(two_streams_under_test(order)() for order in orders)]
