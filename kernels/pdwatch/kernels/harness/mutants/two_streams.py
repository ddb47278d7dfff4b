"""A layer on two streams: two products that do not depend on each other, overlapped inside a capture. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor

from pdwatch.kernels.harness.custom import custom
from pdwatch.kernels.harness.hazards import unowned
from pdwatch.kernels.harness.kernel import KernelUnderTest, Tolerance
from pdwatch.kernels.harness.recording import new_stream

WIDTH = 4096
_EXACT = Tolerance("a few fp32 operations on each element", ulps=8.0, of_magnitude=2.0**-20)


class Order(StrEnum):
    """How the two streams are kept in order. The first three are right."""

    JOINED = "joined"
    RECORDED = "recorded"
    ONE_STREAM = "one stream"
    # H1: a transient of the main stream is dropped before the side stream has read it
    DROPPED_EARLY = "dropped early"
    # H2: a result of the side stream is dropped while the main stream still reads it
    RESULT_DROPPED = "result dropped"
    # the fork is recorded before what the side stream reads is written
    FORKED_EARLY = "forked early"
    # the main stream reads a result before it has waited for it
    JOINED_LATE = "joined late"
    # results of two layers lie in one block although the streams overlap
    SCRATCH_SHARED = "scratch shared"
    # a result is handed out by address, its memory is free
    RESULT_UNOWNED = "result unowned"


class TwoStreamLayer:
    """out = sum over two layers of (4 (layer + 1) * (2 x) + (x + layer)), the first term on a side stream."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._side: torch.cuda.Stream | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._side is None:
            self._side = new_stream()
        side, main = self._side, torch.cuda.current_stream()
        if self._order is Order.ONE_STREAM:
            side = main
        total = torch.zeros_like(x)
        scratch = torch.empty_like(x) if self._order is Order.SCRATCH_SHARED else None
        for layer in range(2):
            total = total + self._layer(x, layer, main, side, scratch)
        if self._order is Order.RESULT_UNOWNED:
            return unowned(total)
        return total

    def _layer(
        self, x: Tensor, layer: int, main: torch.cuda.Stream, side: torch.cuda.Stream, scratch: Tensor | None
    ) -> Tensor:
        early = None
        if self._order is Order.FORKED_EARLY:
            early = main.record_event()
        doubled = x * 2.0
        if early is not None:
            side.wait_event(early)
        elif self._order is not Order.RESULT_DROPPED or layer == 0:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            if self._order is Order.RESULT_DROPPED:
                # reads the input only: it needs nothing of the main stream, so the fork seems to be superfluous
                branch = x * (8.0 * (layer + 1))
            elif scratch is not None:
                branch = torch.mul(doubled, 4.0 * (layer + 1), out=scratch).clone()
            else:
                branch = doubled * (4.0 * (layer + 1))
        if self._order is Order.RECORDED:
            doubled.record_stream(side)
            branch.record_stream(main)
        if self._order in (Order.DROPPED_EARLY, Order.RECORDED):
            del doubled
        # of the same size: what the allocator hands out here may be what was just dropped
        other = x + float(layer) if scratch is None else torch.add(x, float(layer), out=scratch).clone()
        if self._order is Order.JOINED_LATE:
            result = other + branch
            main.wait_stream(side)
            return result
        main.wait_stream(side)
        return other + branch


def _reference(x: Tensor) -> Tensor:
    return 26 * x + 1


def two_streams_under_test(order: Order) -> Callable[[], KernelUnderTest]:
    """A kernel of the custom family whose rows are as wide as an activation."""

    def make() -> KernelUnderTest:
        return custom(
            f"mutant.two_streams.{order.name.lower()}",
            run=TwoStreamLayer(order),
            reference=_reference,
            inputs=lambda rows, generator: {"x": torch.randn(rows, WIDTH, generator=generator)},
            tolerance=_EXACT,
            batched=["x"],
            devices=("cuda",),
        )

    return make
