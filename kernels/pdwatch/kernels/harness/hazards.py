"""Side-stream hazards of captured work: three tools that take any callable, and one for graphs that share a pool.

The callable issues work on the current stream (and on streams of its own that it forks and joins) and returns its
results by name. H1: a transient of the main stream is read on a side stream and freed before the join. H2: a result of
a side stream is freed while the main stream still reads it. H3: graphs that share a pool overlap, or the results of
one are read after another ran.

`unordered_accesses`  the address oracle: needs no timing, sees the operators of PyTorch
`delay_fuzz`          spins at every fork and join: correct work is bitwise invariant to delays; sees every kernel
`keep_alive`          no transient is ever freed: the results must not change; sees every kernel
`shared_pool`         two callables captured into one pool
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pdwatch.kernels.harness.compare import differing
from pdwatch.kernels.harness.kernel import Outputs
from pdwatch.kernels.harness.memory import clones
from pdwatch.kernels.harness.ordering import Ordering, Race
from pdwatch.kernels.harness.recording import Graph, Work, new_stream

# about half a millisecond at 2 GHz: longer than any decode kernel of a test
DELAY_CYCLES = 1_000_000
# delays are put at this many forks and joins from the start, in all combinations
_FUZZED_PLACES = 4

Patched = Callable[..., Any]
Defined = Mapping[str, Tensor | None]
"""For each result the elements that count; None: all."""


def unordered_accesses(work: Work, stream: torch.cuda.Stream | None = None) -> list[Race]:
    """Races of `work` while it is captured, told from the addresses of the operators' tensors alone."""
    observed: list[Race] = []

    def watched() -> Outputs:
        with _Watch() as watch:
            outputs = work()
        observed[:] = watch.ordering.races
        return outputs

    # the last run of `watched` is the one inside the capture, with the addresses of the graph's own pool
    Graph(watched, stream=stream)
    return observed


def delay_fuzz(work: Work, defined: Defined | None = None, replays: int = 3, cycles: int = DELAY_CYCLES) -> str | None:
    """How a replay with delays at forks and joins differs from a run without overlap; None if none does."""
    expected = _undisturbed(work)
    for pattern in product((False, True), repeat=_FUZZED_PLACES):
        if problem := _replayed(_delayed_graph(work, pattern, cycles), expected, defined, replays):
            places = ", ".join(str(number + 1) for number, delayed in enumerate(pattern) if delayed) or "none"
            return f"delays at forks and joins {places}: {problem}"
    return None


def keep_alive(work: Work, defined: Defined | None = None, replays: int = 3, cycles: int = DELAY_CYCLES) -> str | None:
    """How results change once transients are freed, under the delays that widen every window; None if they do not."""
    for place in range(_FUZZED_PLACES):
        pattern = tuple(number == place for number in range(_FUZZED_PLACES))
        with _KeepAlive() as keeper:
            graph = _delayed_graph(work, pattern, cycles)
        graph.replay()
        torch.cuda.synchronize()
        expected = clones(graph.outputs)
        keeper.kept.clear()
        del graph
        if problem := _replayed(_delayed_graph(work, pattern, cycles), expected, defined, replays):
            return f"a delay at fork or join {place + 1}: {problem}"
    return None


def shared_pool(
    first: Work,
    second: Work,
    defined: tuple[Defined | None, Defined | None] = (None, None),
    *,
    together: bool = False,
    results_dropped: bool = False,
    replays: int = 3,
) -> str | None:
    """What goes wrong when two callables are captured into one pool; None if nothing does.

    The results of the first are read after the second has run. `together` replays both at once, on two streams: a
    shared pool allows that only to work that allocates nothing. `results_dropped` keeps the addresses of the results
    but not the tensors, as an engine does that hands its outputs to the next step by address.
    """
    expected = [_undisturbed(work) for work in (first, second)]
    pool = torch.cuda.graph_pool_handle()
    # two captures of one stream, since a pool hands blocks out by stream; replays may use others
    stream = new_stream()
    graphs: list[Graph] = []
    for work in (first, second):
        graph = Graph(work, pool, stream)
        if results_dropped:
            graph.outputs = {name: unowned(tensor) for name, tensor in graph.outputs.items()}
        graphs.append(graph)
    streams = [new_stream() for _ in graphs] if together else [stream] * len(graphs)
    for _ in range(replays):
        for graph, own in zip(graphs, streams, strict=True):
            own.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(own):
                graph.replay()
        torch.cuda.synchronize()
        for name, graph, values, masks in zip(("first", "second"), graphs, expected, defined, strict=True):
            if problem := differing(graph.outputs, values, masks):
                return f"results of the {name} graph after both were replayed: {problem}"
    return None


def _delayed_graph(work: Work, pattern: Sequence[bool], cycles: int) -> Graph:
    stream = new_stream()
    with _delays(pattern, cycles, stream):
        return Graph(work, stream=stream)


def unowned(tensor: Tensor) -> Tensor:
    """The same memory, which the allocator may hand out again."""
    nbytes = tensor.untyped_storage().nbytes()
    storage = torch._C._construct_storage_from_data_pointer(tensor.untyped_storage().data_ptr(), tensor.device, nbytes)
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _undisturbed(work: Work) -> Outputs:
    """Results of an eager run whose every operation is finished before the next begins."""
    with _Serial():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        outputs = clones(work())
    torch.cuda.synchronize()
    return outputs


def _replayed(graph: Graph, expected: Outputs, defined: Defined | None, replays: int) -> str | None:
    for _ in range(replays):
        graph.replay()
        torch.cuda.synchronize()
        if problem := differing(graph.outputs, expected, defined):
            return problem
    return None


class _Serial(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the mode untyped
    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        produced = function(*arguments, **(keywords or {}))
        torch.cuda.synchronize()
        return produced


class _KeepAlive(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the mode untyped
    """Keeps every tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.kept: list[Any] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        produced = function(*arguments, **(keywords or {}))
        self.kept.append(produced)
        return produced


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the mode untyped
    """Tells an `Ordering` of every operator, event and wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.ordering = Ordering()
        self._patches: list[Any] = []

    def __enter__(self) -> _Watch:
        self._patches = [
            mock.patch.object(torch.cuda.Event, "record", self._recorded(torch.cuda.Event.record)),
            mock.patch.object(torch.cuda.Event, "wait", self._waited(torch.cuda.Event.wait)),
        ]
        for patch in self._patches:
            patch.start()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for patch in self._patches:
            patch.stop()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        produced = function(*arguments, **(keywords or {}))
        schema = function._schema
        written = [
            argument
            for argument, entry in zip(arguments, schema.arguments, strict=False)
            if entry.alias_info is not None and entry.alias_info.is_write
        ] + [
            value
            for entry in schema.arguments
            if entry.alias_info is not None and entry.alias_info.is_write
            for value in [(keywords or {}).get(entry.name)]
        ]
        if _is_work(schema):
            stream = torch.cuda.current_stream().cuda_stream
            fresh = [] if written else [produced]
            self.ordering.access(stream, schema.name, _spans((arguments, keywords)), _spans((written, fresh)))
        return produced

    def _recorded(self, original: Patched) -> Patched:
        def record(event: torch.cuda.Event, stream: torch.cuda.Stream | None = None) -> None:
            chosen = stream if stream is not None else torch.cuda.current_stream()
            original(event, chosen)
            self.ordering.record(id(event), chosen.cuda_stream)

        return record

    def _waited(self, original: Patched) -> Patched:
        def wait(event: torch.cuda.Event, stream: torch.cuda.Stream | None = None) -> None:
            chosen = stream if stream is not None else torch.cuda.current_stream()
            original(event, chosen)
            self.ordering.wait(chosen.cuda_stream, id(event))

        return wait


@contextmanager
def _delays(pattern: Sequence[bool], cycles: int, main: torch.cuda.Stream) -> Iterator[None]:
    """Spins in the capture of `main`: on each waiting stream after its wait, and on `main` after each of its records.

    So both branches of a fork have a place in the pattern, and so has what follows a join. A side stream is not held
    back after its record: nothing would join that spin.
    """
    place = 0
    recorded, waited = torch.cuda.Event.record, torch.cuda.Event.wait

    def spin(stream: torch.cuda.Stream) -> None:
        nonlocal place
        if pattern[place % len(pattern)]:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        place += 1

    def record(event: torch.cuda.Event, stream: torch.cuda.Stream | None = None) -> None:
        chosen = stream if stream is not None else torch.cuda.current_stream()
        recorded(event, chosen)
        if chosen == main and torch.cuda.is_current_stream_capturing():
            spin(chosen)

    def wait(event: torch.cuda.Event, stream: torch.cuda.Stream | None = None) -> None:
        chosen = stream if stream is not None else torch.cuda.current_stream()
        waited(event, chosen)
        if torch.cuda.is_current_stream_capturing():
            spin(chosen)

    with mock.patch.object(torch.cuda.Event, "record", record), mock.patch.object(torch.cuda.Event, "wait", wait):
        yield


def _is_work(schema: Any) -> bool:
    """Does the operator launch anything? Allocations, views and notes to the allocator do not."""
    if schema.name.startswith(("aten::empty", "aten::new_empty", "aten::record_stream")):
        return False
    kinds = [entry.alias_info for entry in schema.returns]
    return not kinds or any(kind is None or kind.is_write for kind in kinds)


def _spans(values: Any) -> list[range]:
    """Address ranges of all CUDA tensors among the values, from first to last element."""
    return [
        range(tensor.data_ptr(), tensor.data_ptr() + _extent(tensor))
        for tensor in tree_flatten(values)[0]
        if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.numel()
    ]


def _extent(tensor: Tensor) -> int:
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()
