"""Server-sent events: the standard's rules, and that the cut of the bytes changes nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.loadgen.sse import Event, EventStream


def read(*pieces: bytes, largest: int = 1000) -> list[Event]:
    stream = EventStream(largest)
    return [event for piece in pieces for event in stream.feed(piece)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"data: a\n\n", [Event(b"a")], id="line feeds"),
        pytest.param(b"data: a\r\n\r\n", [Event(b"a")], id="carriage returns and line feeds"),
        pytest.param(b"data: a\r\r", [Event(b"a")], id="bare carriage returns"),
        pytest.param(b"data: a\r\n\n", [Event(b"a")], id="mixed line ends"),
        pytest.param(b"data:a\n\n", [Event(b"a")], id="no space"),
        pytest.param(b"data:  a\n\n", [Event(b" a")], id="only one space is dropped"),
        pytest.param(b"data: a\ndata: b\n\n", [Event(b"a\nb")], id="lines are joined"),
        pytest.param(b"data\n\n", [Event(b"")], id="no colon"),
        pytest.param(b"data:\n\n", [Event(b"")], id="empty data is an event"),
        pytest.param(b": ping\n\ndata: a\n\n", [Event(b"a")], id="comments"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Event(b"a")], id="byte order mark"),
        pytest.param(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", [], id="a second byte order mark is a field name"),
        pytest.param(b"event: error\ndata: a\n\ndata: b\n\n", [Event(b"a", b"error"), Event(b"b")], id="type"),
        pytest.param(b"event: error\n\ndata: b\n\n", [Event(b"b")], id="a type without data is dropped"),
        pytest.param(b"id: 7\ndata: a\n\ndata: b\n\n", [Event(b"a", b"", b"7"), Event(b"b", b"", b"7")], id="id stays"),
        pytest.param(b"id: 7\0\ndata: a\n\n", [Event(b"a")], id="an id with a null is ignored"),
        pytest.param(b"retry: 10\nfoo: b\ndata: a\n\n", [Event(b"a")], id="other fields"),
        pytest.param(b"data: a\n\ndata: b\n", [Event(b"a")], id="an unfinished event is dropped"),
        pytest.param("data: 東京\n\n".encode(), [Event("東京".encode())], id="other letters"),
        pytest.param(b"data: \xff\n\n", [Event(b"\xff")], id="bytes that are no text"),
    ],
)
def test_events(data: bytes, expected: list[Event]) -> None:
    assert read(data) == expected
    assert read(*(data[i : i + 1] for i in range(len(data)))) == expected


LINES = st.sampled_from(
    [b"data: x", b"data:", b"data", b"data: \xe6\x9d\xb1", b"event: error", b"id: 1", b": c", b"", b"", b"\xef\xbb\xbf"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    parts=st.lists(st.tuples(LINES, ENDS), max_size=20),
    cuts=st.lists(st.integers(0, 200), max_size=30),
    largest=st.sampled_from([8, 20, 1000]),
)
def test_any_cut_gives_the_same_events(parts: list[tuple[bytes, bytes]], cuts: list[int], largest: int) -> None:
    data = b"".join(line + end for line, end in parts)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole, pieces = EventStream(largest), EventStream(largest)
    expected = whole.feed(data)
    got = [e for start, end in itertools.pairwise(places) for e in pieces.feed(data[start:end])]
    assert got == expected
    assert pieces.overflowed == whole.overflowed
    assert pieces.unfinished == whole.unfinished


def test_unfinished_event_is_kept_apart() -> None:
    stream = EventStream()
    assert stream.feed(b"event: error\ndata: a\ndata: b") == []
    assert stream.unfinished == Event(b"a\nb", b"error")


@pytest.mark.parametrize("data", [b"data: " + b"x" * 30, b"data: x\n" * 5, b":" + b"x" * 30 + b"\n"])
def test_too_long_ends_the_parsing(data: bytes) -> None:
    stream = EventStream(largest_event_bytes=20)
    assert stream.feed(b"data: a\n\n" + data) == [Event(b"a")]
    assert stream.overflowed
    assert stream.feed(b"\n\ndata: b\n\n") == []
    assert stream.unfinished is None
