"""The parts of a run on several drivers, without the drivers."""

from __future__ import annotations

import urllib.request
from array import array
from collections import deque
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.loadgen import JOURNAL_NAME, JournalCorrupt, Label, LoadgenError, Outcome, PlanError, read_transcripts
from pdwatch.loadgen.journal import JournalWriter
from pdwatch.loadgen.load import OpenLoad
from pdwatch.loadgen.plan import Phase, Plan
from pdwatch.loadgen.row import ROWS_NAME, RequestRow, RowWriter, read_rows
from pdwatch.loadgen.scale.board import Board
from pdwatch.loadgen.scale.clock import ClockOffset, Ping, between, clock_offset
from pdwatch.loadgen.scale.exhibit import Exhibit
from pdwatch.loadgen.scale.facts import WorkerFacts, judge_workers, merged_facts
from pdwatch.loadgen.scale.gaps import GAPS_NAME, GapWriter, encode_gaps, with_gaps
from pdwatch.loadgen.scale.ledger import Ledger
from pdwatch.loadgen.scale.link import Link, Packet
from pdwatch.loadgen.scale.shipping import PIECE_BYTES, Incoming, Outgoing
from pdwatch.loadgen.scale.wholeness import frame_ends
from pdwatch.loadgen.share import Share
from pdwatch.loadgen.validity import ClientFacts, ProcessUse, ValidityLimits

records = st.lists(st.binary(max_size=300) | st.builds(lambda n: bytes(n), st.integers(0, 300_000)), max_size=8)


def make_row(number: int = 0, user: int = 0, **changes: Any) -> RequestRow:
    row = RequestRow(
        request_id=f"candidate-0-measured-{number}",
        arm="candidate",
        level=4,
        phase=0,
        label=Label.MEASURED,
        user=user,
        number=number,
        outcome=Outcome.COMPLETE,
        outcome_detail="",
        status=200,
        finish_reason="stop",
        is_streamed=True,
        scheduled_seconds=None,
        connect_seconds=None,
        sent_seconds=100.0,
        sent_unix_seconds=1.7e9,
        ended_seconds=101.0,
        request_bytes=10,
        response_bytes=20,
        reads=3,
        defects=(),
        family=None,
        session=None,
        turn=None,
        time_to_first_token_seconds=0.25,
        end_to_end_seconds=0.75,
        inter_token_seconds=array("d", [0.1, 0.2]),
    )
    return replace(row, **changes)


@given(st.integers(1, 9), st.integers(0, 100))
def test_shares_partition_everything(of: int, total: int) -> None:
    shares = [Share(index, of) for index in range(of)]
    numbers = [[share.number(place) for place in range(share.count(total))] for share in shares]
    assert sorted(number for own in numbers for number in own) == list(range(total))
    assert all(share.has(number) for share, own in zip(shares, numbers, strict=True) for number in own)
    assert max(map(len, numbers)) - min(map(len, numbers)) <= 1


@given(records, st.booleans())
def test_frames_end_where_zstd_says(bodies: list[bytes], has_checksum: bool) -> None:
    pack = zstandard.ZstdCompressor(write_checksum=has_checksum).compress
    frames = [pack(body) for body in bodies]
    data = b"".join(frames)
    ends = list(frame_ends(data))
    assert ends == [len(b"".join(frames[: place + 1])) for place in range(len(frames))]
    # of any beginning, the whole frames and no more.
    cut = len(data) * 2 // 3
    assert list(frame_ends(data[:cut])) == [end for end in ends if end <= cut]


def test_what_is_no_frame() -> None:
    with pytest.raises(JournalCorrupt, match="begins no frame"):
        list(frame_ends(b"not zstd at all"))


@given(records, st.lists(st.integers(0, 2000), max_size=20), st.randoms(use_true_random=False))
def test_growing_files_arrive_whole(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], cuts: list[int], random: Random
) -> None:
    path = tmp_path_factory.mktemp("growing") / ROWS_NAME
    data = b"".join(zstandard.compress(body) for body in bodies)
    outgoing, incoming = Outgoing(path), Incoming()
    arrived: list[bytes] = []
    steps = sorted({*(min(cut, len(data)) for cut in cuts), len(data)})
    for step in steps:
        path.write_bytes(data[:step])
        for piece in outgoing.pieces():
            arrived += incoming.add(piece)
    assert [zstandard.decompress(frame) for frame in arrived] == bodies
    assert incoming.is_whole(outgoing.total())
    assert incoming.frames == len(bodies)
    assert incoming.rest_bytes == 0


def test_pieces_are_bounded_and_checked(tmp_path: Path) -> None:
    path = tmp_path / ROWS_NAME
    path.write_bytes(zstandard.compress(Random(1).randbytes(3 * PIECE_BYTES)))
    pieces = list(Outgoing(path).pieces())
    assert max(len(piece["data"]) for piece in pieces) == PIECE_BYTES
    with pytest.raises(JournalCorrupt, match="out of place"):
        Incoming().add(pieces[1])
    with pytest.raises(JournalCorrupt, match="damaged"):
        Incoming().add({**pieces[0], "data": pieces[0]["data"][:-1] + b"?"})


class Wire:
    """Two links, and packets between them that are lost, doubled and delayed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.packets: list[tuple[int, Packet]] = []
        self.got: tuple[list[Any], list[Any]] = ([], [])
        self.ends = [
            Link(lambda packet: self.send(1, packet), self.got[0].append, lambda: self.now),
            Link(lambda packet: self.send(0, packet), self.got[1].append, lambda: self.now),
        ]

    def send(self, to: int, packet: Packet) -> None:
        for _ in range(self.random.choice((0, 1, 1, 2))):
            self.packets.insert(self.random.randint(0, len(self.packets)), (to, packet))

    def settle(self) -> None:
        for _ in range(10_000):
            while self.packets:
                to, packet = self.packets.pop(0)
                self.ends[to].took(packet)
            if not any(end.pending for end in self.ends):
                return
            self.now += 1.0
            for end in self.ends:
                end.remind()
        raise AssertionError("never settled")


@given(st.randoms(use_true_random=False), st.integers(0, 40), st.integers(0, 40))
def test_messages_arrive_once_and_in_order(random: Random, there: int, back: int) -> None:
    wire = Wire(random)
    for number in range(there):
        wire.ends[0].put(number)
    for number in range(back):
        wire.ends[1].put(number)
    wire.settle()
    assert wire.got == (list(range(back)), list(range(there)))


def test_a_link_keeps_few_packets_under_way() -> None:
    sent: deque[Packet] = deque()
    link = Link(sent.append, lambda message: None)
    for number in range(100):
        link.put(number)
    assert len(sent) == 8
    link.took({"acknowledged": 3})
    assert len(sent) == 11
    assert link.pending == 97


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 0.1), st.floats(0, 1000)), min_size=1, max_size=20),
)
def test_the_true_offset_is_within_the_bounds(offset: float, ways: list[tuple[float, float, float]]) -> None:
    pings = [Ping(start, start + there + offset, start + there + back) for there, back, start in ways]
    found = clock_offset(pings)
    assert abs(found.offset_seconds - offset) <= found.uncertainty_seconds + 1e-6
    shortest = min(there + back for there, back, _ in ways)
    assert found.uncertainty_seconds <= shortest / 2 + 1e-6
    assert found.to_ours(found.to_other(5.0)) == pytest.approx(5.0)


def test_one_machine_has_one_clock() -> None:
    near, far = Ping(1.0, 1.0004, 1.0005), Ping(1.0, 51.0, 1.0005)
    assert clock_offset([near], is_same_machine=True) == ClockOffset()
    # but for a clock of its own, as in a time namespace.
    assert clock_offset([far], is_same_machine=True).offset_seconds == pytest.approx(49.99975)


def test_a_drift_widens_the_bounds() -> None:
    found = between(ClockOffset(1.0, 0.001), ClockOffset(1.004, 0.0005))
    assert [found.offset_seconds, found.uncertainty_seconds] == pytest.approx([1.002, 0.003])


gaps = st.none() | st.lists(st.floats(0, 100), max_size=50).map(lambda values: array("d", values))


@given(gaps, gaps)
def test_gaps_come_back(tokens: array[float] | None, chunks: array[float] | None) -> None:
    row = make_row(inter_token_seconds=tokens, inter_chunk_seconds=chunks)
    bare = replace(row, inter_token_seconds=None, inter_chunk_seconds=None)
    assert with_gaps(bare, encode_gaps(row)) == row


def test_bytes_that_are_no_gaps() -> None:
    for data in (b"", b"\1\0\0\0\0\0\0\0", encode_gaps(make_row()) + b"!"):
        with pytest.raises(ValueError, match="hold"):
            with_gaps(make_row(), data)


def record(directory: Path, rows: list[RequestRow], transcript: Any) -> None:
    """What a driver's clerk would write of some rows."""
    directory.mkdir()
    with (
        JournalWriter(directory / JOURNAL_NAME) as journal,
        RowWriter(directory / ROWS_NAME) as writer,
        GapWriter(directory / GAPS_NAME) as gap_writer,
    ):
        for row in rows:
            journal.append(replace(transcript(((100.5, b"x"),)), request_id=row.request_id, user=row.user))
            writer.append(row)
            gap_writer.append(row)


def test_journals_merge_without_loss(tmp_path: Path, transcript: Any) -> None:
    rows = [[make_row(number, user=number) for number in range(worker, 30, 3)] for worker in range(3)]
    came: list[tuple[int, RequestRow]] = []
    ledger = Ledger(tmp_path / "out", 3, lambda worker, row: came.append((worker, row)))
    for worker, own in enumerate(rows):
        folder = tmp_path / str(worker)
        record(folder, own, transcript)
        outgoing = [Outgoing(folder / name) for name in (JOURNAL_NAME, ROWS_NAME, GAPS_NAME)]
        for file in outgoing:
            for piece in file.pieces():
                ledger.add(worker, piece)
        ledger.check(worker, [file.total() for file in outgoing])
        assert ledger.counts(worker) == {"transcripts": 10, "requests": 10, "cut_bytes": 0}
    ledger.close()
    assert came == [(worker, row) for worker, own in enumerate(rows) for row in own]
    ids = sorted(row.request_id for own in rows for row in own)
    assert sorted(one.request_id for one in read_transcripts(tmp_path / "out" / JOURNAL_NAME)) == ids
    assert sorted(row.request_id for row in read_rows(tmp_path / "out" / ROWS_NAME)) == ids


def test_a_cut_record_is_told_and_left_out(tmp_path: Path, transcript: Any) -> None:
    came: list[RequestRow] = []
    ledger = Ledger(tmp_path / "out", 1, lambda worker, row: came.append(row))
    folder = tmp_path / "worker"
    record(folder, [make_row(number) for number in range(3)], transcript)
    for name in (JOURNAL_NAME, ROWS_NAME):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-5])
    # the process that shipped it died before it had shipped anything.
    ledger.salvage(0, folder)
    ledger.close()
    assert ledger.counts(0)["requests"] == ledger.counts(0)["transcripts"] == len(came) == 2
    assert ledger.counts(0)["cut_bytes"] > 0
    assert len(list(read_rows(tmp_path / "out" / ROWS_NAME))) == 2


def test_a_lost_byte_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 1, lambda worker, row: None)
    with pytest.raises(LoadgenError, match="its own copy is the true one"):
        ledger.check(0, [{"name": ROWS_NAME, "size_bytes": 1, "sha256": ""}])
    ledger.close()


def test_a_ledger_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_bytes(b"dear")
    with pytest.raises(PlanError, match="is there already; give an empty folder"):
        Ledger(tmp_path, 1, lambda worker, row: None)
    assert (tmp_path / JOURNAL_NAME).read_bytes() == b"dear"


def worker_facts(index: int, lag_seconds: float = 0.0, uncertainty_seconds: float = 0.0, **facts: Any) -> WorkerFacts:
    values = {"loop_lag_p99_seconds": 0.001, "intended_in_flight": 4, "achieved_in_flight": 4, **facts}
    return WorkerFacts(index, ClientFacts(**values), lag_seconds, uncertainty_seconds)


def test_facts_of_all() -> None:
    use = {"driver": ProcessUse(cpu_seconds=1, elapsed_seconds=2)}
    workers = [worker_facts(0, processes=use), worker_facts(1, loop_lag_p99_seconds=0.004, processes=use)]
    merged = merged_facts(workers)
    assert (merged.intended_in_flight, merged.loop_lag_p99_seconds) == (8, 0.004)
    assert merged.intended_rate_per_second is None
    assert set(merged.processes) == {"driver 0", "driver 1"}
    assert judge_workers(workers, ValidityLimits(), []).is_valid


def test_a_bound_that_one_worker_reached_is_not_the_clients_limit() -> None:
    full = {"schedule_lag_p99_seconds": 2.0, "most_in_flight": 8, "bound_in_flight": 8}
    validity = judge_workers([worker_facts(0), worker_facts(1, **full)], ValidityLimits(), [])
    assert (validity.is_valid, validity.is_bound_reached) == (False, True)
    assert validity.reasons[0].startswith("worker 1: the bound of 8 in flight was reached")
    for other in (worker_facts(0, loop_lag_p99_seconds=0.5), worker_facts(0, lag_seconds=0.3)):
        assert not judge_workers([other, worker_facts(1, **full)], ValidityLimits(), []).is_bound_reached
    assert merged_facts([worker_facts(0, **full), worker_facts(1, **full)]).bound_in_flight == 16


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loop_lag_p99_seconds": 0.5}, "worker 1: loop lag p99 500 ms"),
        # the sum would hide it.
        ({"achieved_in_flight": 3}, "worker 1: 3.0 requests were in flight on average, 4 intended"),
        ({"lag_seconds": 0.3}, "worker 1: it began 300 ms after the agreed time"),
        ({"uncertainty_seconds": 0.02}, "worker 1: its clock is known to ±20 ms only"),
    ],
)
def test_one_worker_makes_all_invalid(changes: dict[str, Any], reason: str) -> None:
    validity = judge_workers([worker_facts(0), worker_facts(1, **changes)], ValidityLimits(), [])
    assert not validity.is_valid
    assert validity.reasons[0].startswith(reason)


def test_a_lost_worker_makes_all_invalid() -> None:
    validity = judge_workers([worker_facts(0)], ValidityLimits(), ["worker 1 was lost: it died"])
    assert validity.reasons == ("worker 1 was lost: it died",)


def test_the_exhibit_shows_all_gauges(free_port: int) -> None:
    plan = Plan(
        seed=1,
        targets={"candidate": "http://127.0.0.1:1"},
        model="m",
        phases=(Phase(index=0, arm="candidate", level=1024, load=OpenLoad(kind="open", rate_per_second=2.5)),),
        metrics_port=free_port,
    )
    exhibit = Exhibit(plan)
    try:
        exhibit.begin(plan.phases[0])
        exhibit.row(make_row(level=1024))
        exhibit.progress({"in_flight": 3, "users": 8, "loop_lag_seconds": 0.002, "live": {}})
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        exhibit.close()
    for gauge in ("in_flight 3.0", "users 8.0", "loop_lag_seconds 0.002"):
        assert f"pdwatch_loadgen_{gauge}\n" in text
    assert 'pdwatch_loadgen_requests_total{arm="candidate",level="1024",load="2.5/s",outcome="complete"} 1.0' in text


def test_the_board_tells_apart_what_completed() -> None:
    board = Board()
    board.begin(Phase(index=0, arm="candidate", level=4))
    board.row(make_row())
    board.row(make_row(outcome=Outcome.RESET, time_to_first_token_seconds=9.0))
    board.progress({"in_flight": 3, "loop_lag_seconds": 0.002, "live": {"good_share": 0.5}})
    shown = {line["figure"]: line for line in board.live()}
    assert shown["TTFT"]["p99"].startswith("24") and shown["TTFT"]["p99"].endswith(" ms")
    assert shown["ITL"]["p50"].endswith(" ms")
    assert shown["TPOT"]["p50"] == "–"
    assert (shown["Complete"]["value"], shown["Outcome reset"]["value"]) == ("1", "1")
    assert (shown["In flight"]["value"], shown["Goodput"]["value"]) == ("3", "50.0%")
    assert shown["Validity"]["value"] == "judged at the phase's end"
