"""A recorded run of a kernel: a CUDA graph on a GPU, a tape of operators elsewhere."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from pdwatch.kernels.harness.kernel import Inputs, Outputs
from pdwatch.kernels.harness.tape import Tape, replay_interleaved

Work = Callable[[], Outputs]


class Recording(Protocol):
    """`outputs` lie where `replay` writes them."""

    outputs: Outputs

    def replay(self) -> None: ...


class Graph:
    """A captured CUDA graph of `work`, warmed up eagerly on the stream of its capture."""

    def __init__(self, work: Work, pool: Any = None, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream if stream is not None else new_stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            work()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # not `torch.cuda.graph`: it collects garbage and empties the cache each time, and a check captures often
        with torch.cuda.stream(self.stream), _no_collection():
            self.graph.capture_begin(pool, capture_error_mode="global")
            try:
                # the capture itself has allocated by now
                before = allocations()
                self.outputs: Outputs = work()
                self.allocations = allocations() - before
            except BaseException:
                # what went wrong matters, not that the capture cannot be ended after it
                with suppress(RuntimeError):
                    self.graph.capture_end()
                raise
            self.graph.capture_end()
        torch.cuda.synchronize()

    def replay(self) -> None:
        self.graph.replay()


def record(work: Work, device: torch.device, pool: Any = None) -> Recording:
    """Record `work` on `device`. On a GPU `pool` shares memory between graphs."""
    return Graph(work, pool) if device.type == "cuda" else Tape(work)


def replay_together(recordings: Sequence[Recording], device: torch.device) -> None:
    """All recordings at the same time, as on streams of their own."""
    if device.type != "cuda":
        replay_interleaved([recording for recording in recordings if isinstance(recording, Tape)])
        return
    current = torch.cuda.current_stream()
    graphs = [recording for recording in recordings if isinstance(recording, Graph)]
    for graph in graphs:
        graph.stream.wait_stream(current)
        with torch.cuda.stream(graph.stream):
            graph.replay()
    for graph in graphs:
        current.wait_stream(graph.stream)


def load(static: Inputs, values: Inputs) -> None:
    """Copy the values of one case into the tensors that a recording reads."""
    for name, target in static.items():
        if isinstance(target, torch.Tensor):
            target.copy_(values[name])


def allocations() -> int:
    """Allocations of PyTorch on the current GPU so far."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def new_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped


@contextmanager
def _no_collection() -> Iterator[None]:
    """Inside, no garbage is collected: the end of an old graph or event is no work for a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Inside, whatever makes the host wait for the GPU raises."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # it calls itself a prototype that does not see everything: the capture sees the rest
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
