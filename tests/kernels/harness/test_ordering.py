"""The race detector against programs on a caching allocator that keeps PyTorch's rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from pdwatch.kernels.harness.ordering import Ordering

MAIN, SIDE = 1, 2
SIZE = 512


class Machine:
    """Streams and an allocator: a free block goes to the next request of the stream that owns it, and to no other.

    A block recorded on another stream is not handed out again while the program runs, as in a capture.
    """

    def __init__(self) -> None:
        self.ordering = Ordering()
        self._free: dict[int, list[int]] = defaultdict(list)
        self._owner: dict[int, int] = {}
        self._recorded: set[int] = set()
        self._events = 0

    def allocate(self, stream: int) -> int:
        if self._free[stream]:
            return self._free[stream].pop()
        address = SIZE * (len(self._owner) + 1)
        self._owner[address] = stream
        return address

    def free(self, address: int) -> None:
        if address not in self._recorded:
            self._free[self._owner[address]].append(address)

    def record_stream(self, address: int) -> None:
        self._recorded.add(address)

    def run(self, stream: int, what: str, reads: list[int], writes: list[int]) -> None:
        spans = [[range(address, address + SIZE) for address in addresses] for addresses in (reads, writes)]
        self.ordering.access(stream, what, *spans)

    def wait(self, stream: int, other: int) -> None:
        self._events += 1
        self.ordering.record(self._events, other)
        self.ordering.wait(stream, self._events)


def freed_before_the_join(machine: Machine, cure: str) -> None:
    """H1: a transient of the main stream is read by the side stream and freed."""
    transient = machine.allocate(MAIN)
    machine.run(MAIN, "produce", [], [transient])
    machine.wait(SIDE, MAIN)
    machine.run(SIDE, "read", [transient], [machine.allocate(SIDE)])
    if cure == "record":
        machine.record_stream(transient)
    if cure == "join":
        machine.wait(MAIN, SIDE)
    if cure != "hold":
        machine.free(transient)
    machine.run(MAIN, "overwrite", [], [machine.allocate(MAIN)])
    machine.wait(MAIN, SIDE)


def side_result_freed(machine: Machine, cure: str) -> None:
    """H2: a result of the side stream is read by the main stream and freed."""
    result = machine.allocate(SIDE)
    machine.run(SIDE, "produce", [], [result])
    machine.wait(MAIN, SIDE)
    machine.run(MAIN, "read", [result], [machine.allocate(MAIN)])
    if cure == "record":
        machine.record_stream(result)
    if cure == "join":
        machine.wait(SIDE, MAIN)
    if cure != "hold":
        machine.free(result)
    machine.run(SIDE, "overwrite", [], [machine.allocate(SIDE)])
    machine.wait(MAIN, SIDE)


@pytest.mark.parametrize("program", [freed_before_the_join, side_result_freed])
def test_a_block_reused_while_another_stream_reads_it_is_a_race(program: Callable[[Machine, str], None]) -> None:
    machine = Machine()
    program(machine, "none")
    (race,) = machine.ordering.races
    assert (race.earlier.what, race.later.what) == ("read", "overwrite")
    assert "`overwrite` on stream" in str(race)
    assert f"writes {SIZE} bytes" in str(race)


@pytest.mark.parametrize("cure", ["join", "record", "hold"])
@pytest.mark.parametrize("program", [freed_before_the_join, side_result_freed])
def test_each_cure_leaves_no_race(program: Callable[[Machine, str], None], cure: str) -> None:
    machine = Machine()
    program(machine, cure)
    assert machine.ordering.races == []


def test_an_event_orders_only_what_was_issued_before_it() -> None:
    ordering = Ordering()
    block = [range(8)]
    ordering.record(7, MAIN)
    ordering.access(MAIN, "write", [], block)
    ordering.wait(SIDE, 7)
    ordering.access(SIDE, "read", block, [])
    assert len(ordering.races) == 1


def test_order_is_handed_on_from_stream_to_stream() -> None:
    ordering = Ordering()
    block = [range(8)]
    ordering.access(1, "write", [], block)
    for stream, event in ((2, 11), (3, 12)):
        ordering.record(event, stream - 1)
        ordering.wait(stream, event)
    ordering.access(3, "write", [], block)
    assert ordering.races == []


def test_reads_beside_reads_and_other_addresses_are_no_race() -> None:
    ordering = Ordering()
    ordering.access(1, "read", [range(8)], [])
    ordering.access(2, "read", [range(8)], [range(8, 16)])
    assert ordering.races == []
