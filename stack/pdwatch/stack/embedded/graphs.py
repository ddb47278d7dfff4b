"""The decode step as CUDA graphs, one per batch bucket, with the indexer on a side stream if asked for."""

from __future__ import annotations

import bisect

import torch
from torch import Tensor

from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.model import Model
from pdwatch.stack.embedded.overlap import SideStream, SingleStream
from pdwatch.stack.embedded.pool import KvPool
from pdwatch.stack.embedded.rows import DecodeInputs, DecodeRows


class DecodeGraphs:
    """Captures the step over the static row buffers at start-up and replays it.

    A graph bakes in addresses and shapes, never values: it reads the first `bucket` rows at the full width of the
    block table, and rows past the batch are padding. The graphs share one memory pool and replay on one stream, one at
    a time, so an output is valid until the next replay.
    """

    def __init__(self, config: EngineConfig, model: Model, rows: DecodeRows, pool: KvPool) -> None:
        self._buckets = sorted({size for size in config.capture_batch_sizes if size <= config.max_running_requests})
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        # address oracle: for each bucket and layer, whether memory of the dropped transient was handed out again.
        self.reused: dict[int, list[bool]] = {}
        stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        memory = torch.cuda.graph_pool_handle()
        # the largest first, so that the smaller ones find their memory in the shared pool.
        for size in reversed(self._buckets):
            inputs = rows.view(size, config.pages_per_request)
            streams = _streams(config, model.device)
            _warm_up(model, inputs, pool, stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory, stream=stream):
                logits = model.decode(inputs, pool, streams)
            torch.cuda.synchronize()
            self._graphs[size] = graph, logits
            if isinstance(streams, SideStream):
                self.reused[size] = streams.reused

    def bucket(self, batch: int) -> int | None:
        """The smallest captured size that holds `batch` rows, or None when the step must run eagerly."""
        index = bisect.bisect_left(self._buckets, batch)
        return self._buckets[index] if index < len(self._buckets) else None

    def replay(self, batch: int) -> Tensor:
        """Runs the step over the staged rows; logits [batch, vocab], valid until the next replay."""
        size = self.bucket(batch)
        assert size is not None, f"no captured batch size holds {batch} rows"
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:batch]


def _streams(config: EngineConfig, device: torch.device) -> SingleStream:
    if config.multi_stream_overlap == "off":
        return SingleStream()
    releases_early = config.multi_stream_overlap == "racy"
    return SideStream(device, releases_early, config.side_stream_delay_cycles)


def _warm_up(model: Model, inputs: DecodeInputs, pool: KvPool, stream: torch.cuda.Stream) -> None:
    """Lets libraries allocate and choose what they must not do under capture.

    Runs on one stream and writes only to the padding page, because unused rows are padding.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            model.decode(inputs, pool)
    torch.cuda.synchronize()
