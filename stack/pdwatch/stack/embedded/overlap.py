"""Streams of a decode step: everything on one, or the indexer on a side stream inside a capture.

The side stream is forked once a layer's input is ready and joined before the attention. In between the indexer reads a
transient of the main stream. The caching allocator hands a block out again as soon as its tensor is dropped and the
next request comes from the stream that allocated it; it knows nothing of readers on other streams. So the transient
must live until the join (`on`). `racy` drops it right after the main stream's own read: inside a graph no edge orders
the side stream's late read before the main stream's next write to that block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


class SingleStream:
    """Everything on the current stream: no fork, no join."""

    releases_early = False

    def fork(self) -> AbstractContextManager[None]:
        """Work inside runs beside the work that follows, until `join`."""
        return nullcontext()

    def join(self) -> None:
        """Waits for the forked work."""

    def released(self, start: int, size: int) -> None:
        """A transient of `size` bytes at address `start` was dropped although forked work may still read it."""

    def allocated(self, tensor: Tensor) -> None:
        """The main stream allocated `tensor` between fork and join."""


class SideStream(SingleStream):
    """The indexer on a stream of its own.

    `reused` is the address oracle: for each early release in the order of the capture (one a layer), whether the main
    stream got memory of the dropped transient again before the join. It needs no timing.
    `delay_cycles` holds the side stream back before it starts, to widen the window.
    """

    def __init__(self, device: torch.device, releases_early: bool, delay_cycles: int = 0) -> None:
        self.releases_early = releases_early
        self.delay_cycles = delay_cycles
        self.reused: list[bool] = []
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._released: range | None = None

    @contextmanager
    def fork(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if self.delay_cycles:
                torch.cuda._sleep(self.delay_cycles)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            yield

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)
        self._released = None

    def released(self, start: int, size: int) -> None:
        self._released = range(start, start + size)
        self.reused.append(False)

    def allocated(self, tensor: Tensor) -> None:
        if self._released is not None:
            start = tensor.untyped_storage().data_ptr()
            overlaps = start < self._released.stop and start + tensor.untyped_storage().nbytes() > self._released.start
            self.reused[-1] |= overlaps
