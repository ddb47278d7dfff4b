"""Any split of a response's bytes into reads gives the same answer: through the framing, the events and the texts."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pdwatch.loadgen.assembly import Assembled, assemble_body
from pdwatch.loadgen.body import Body
from pdwatch.loadgen.exchange import End, Exchange
from pdwatch.loadgen.framing import Response, parse_response
from pdwatch.loadgen.outcome import classify
from pdwatch.loadgen.sse import Event, read_events

STREAMS = Path(__file__).parents[2] / "data" / "streams"
CASES = {
    f"{path.parent.name}/{path.stem}": path.read_bytes()
    for path in sorted(STREAMS.glob("*/*.http"))
    if path.stat().st_size
}
NAMES = st.sampled_from(sorted(CASES))
# a chunk size is cut in two, a line end, a character and a JSON string, wherever they stand.
EVERY_BYTE = range(1, 1 << 20)


def read(data: bytes, ends: list[int], seconds: list[float] | None = None) -> tuple[Response, Assembled, str]:
    """What is made of a response in reads that end at these offsets, all at second 1 unless told."""
    edges = sorted({end for end in ends if 0 < end < len(data)} | {len(data)})
    sizes = [end - start for start, end in zip([0, *edges], edges, strict=False)]
    exchange = Exchange(
        end=End.CLOSED,
        detail="closed",
        raw=bytearray(data),
        read_seconds=array("d", seconds or [1.0] * len(sizes)),
        read_bytes=array("I", sizes),
    )
    response = parse_response(exchange)
    assembled = assemble_body(response.body, response.headers)
    outcome, detail = classify(exchange, response, assembled, is_streamed=True, promises_usage=True)
    return response, assembled, f"{outcome}: {detail}"


def same(one: tuple[Response, Assembled, str], other: tuple[Response, Assembled, str]) -> None:
    facts = [(r.status, r.headers, r.body.data, r.is_complete, r.error) for r, _, _ in (one, other)]
    assert facts[0] == facts[1]
    assert one[1] == other[1]
    assert one[1].events == other[1].events
    assert one[2] == other[2]


@given(name=NAMES, ends=st.lists(st.integers(1, 2500), max_size=40))
def test_any_split_gives_the_same(name: str, ends: list[int]) -> None:
    same(read(CASES[name], ends), read(CASES[name], []))


def test_every_byte_alone_gives_the_same() -> None:
    for data in CASES.values():
        same(read(data, list(EVERY_BYTE[: len(data)])), read(data, []))


@settings(max_examples=30)
@given(name=NAMES, place=st.integers(1, 2500))
def test_an_event_has_the_time_of_the_read_that_completed_it(name: str, place: int) -> None:
    data = CASES[name]
    place = min(place, len(data) - 1)
    got = read(data, [place], [1.0, 2.0])[1] if place > 0 else read(data, [])[1]
    early = len(read(data[:place], [])[0].body.data)
    if not got.is_event_stream:
        return
    before = sum(_is_object(event) for event in read_events(got.body.data) if event.end <= early)
    times = [event.seconds for event in got.events]
    assert times == [1.0] * before + [2.0] * (len(times) - before)


def _is_object(event: Event) -> bool:
    try:
        return isinstance(json.loads((event.data or b"").decode("utf-8", "surrogatepass")), dict)
    except ValueError:
        return False


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_a_body_gives_its_pieces_back(pieces: list[bytes]) -> None:
    timed = [(float(index), piece) for index, piece in enumerate(pieces)]
    body = Body.from_chunks(timed)
    assert list(body.chunks()) == [(seconds, piece) for seconds, piece in timed if piece]
    assert Body.from_chunks(body.chunks()) == body
