"""Server-sent events: the standard's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.loadgen.sse import Event, EventLines, last_line, read_events, split_lines


def read(data: bytes, *, drops_mark: bool = True) -> list[tuple[bytes | None, bytes]]:
    return [(event.data, event.type) for event in read_events(data, drops_mark=drops_mark)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"data: a\n\n", [b"a"], id="line feeds"),
        pytest.param(b"data: a\r\n\r\n", [b"a"], id="carriage returns and line feeds"),
        pytest.param(b"data: a\r\r", [b"a"], id="bare carriage returns"),
        pytest.param(b"data: a\r\n\n", [b"a"], id="mixed line ends"),
        pytest.param(b"data:a\n\n", [b"a"], id="no space"),
        pytest.param(b"data:  a\n\n", [b" a"], id="only one space is dropped"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="lines are joined"),
        pytest.param(b"data\n\n", [b""], id="no colon"),
        pytest.param(b"data:\n\n", [b""], id="empty data is an event"),
        pytest.param(b": ping\n\ndata: a\n\n", [b"a"], id="comments"),
        pytest.param(b"\n\n\n\ndata: a\n\n\n\n\n", [b"a"], id="empty lines"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte order mark"),
        pytest.param(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", [], id="a second byte order mark is a field name"),
        pytest.param(b"event: error\n\ndata: b\n\n", [None, b"b"], id="a type without data dispatches nothing"),
        pytest.param(b"retry: 10\n\ndata: b\n\n", [None, b"b"], id="a time to retry dispatches nothing"),
        pytest.param(b"retry: x\n\ndata: b\n\n", [b"b"], id="a time to retry is a number"),
        pytest.param(b"id: 7\ndata: a\n\ndata: b\n\n", [b"a", b"b"], id="an id stays"),
        pytest.param(b"id: 7\ndata: a\n\n:\n\n:\n\n", [b"a", None], id="after an id an empty line dispatches nothing"),
        pytest.param(b"id: 7\ndata: a\n\nid\n:\n\n", [b"a"], id="an empty id ends that"),
        pytest.param(b"id: 7\0\ndata: a\n\n:\n\n", [b"a"], id="an id with a null is ignored"),
        pytest.param(b"retry: 10\nfoo: b\ndata: a\n\n", [b"a"], id="other fields"),
        pytest.param(b"data: a\n\ndata: b\n", [b"a"], id="an unfinished event is dropped"),
        pytest.param("data: 東京\n\n".encode(), ["東京".encode()], id="other letters"),
        pytest.param(b"data: \xff\n\n", [b"\xff"], id="bytes that are no text"),
    ],
)
def test_events(data: bytes, expected: list[bytes | None]) -> None:
    assert [event for event, _ in read(data)] == expected


def test_a_type_is_of_its_event_only() -> None:
    assert read(b"event: error\ndata: a\n\ndata: b\n\n") == [(b"a", b"error"), (b"b", b"")]


def test_a_mark_that_is_kept_hides_the_first_line() -> None:
    assert read(b"\xef\xbb\xbfdata: a\ndata: b\n\n", drops_mark=False) == [(b"b", b"")]


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b"data: a\n\ndata: b\n\n", [9, 18]),
        # a carriage return ends its line; the line feed after it is no more than its tail.
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [10, 21]),
        (b"data: a\r\rdata: b\r\r", [9, 18]),
    ],
)
def test_an_event_ends_with_the_byte_that_completes_it(data: bytes, ends: list[int]) -> None:
    assert [event.end for event in read_events(data)] == ends
    for end in ends:
        assert len(list(read_events(data[:end]))) == len(list(read_events(data[: end - 1]))) + 1


LINES = st.sampled_from(
    [b"data: x", b"data:", b"data", b"data: \xe6\x9d\xb1", b"event: error", b"id: 1", b": c", b"", b"", b"\xef\xbb\xbf"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(parts=st.lists(st.tuples(LINES, ENDS), max_size=20), place=st.integers(0, 200))
def test_more_bytes_change_no_event(parts: list[tuple[bytes, bytes]], place: int) -> None:
    data = b"".join(line + end for line, end in parts)
    whole = list(read_events(data))
    assert list(read_events(data[:place])) == [event for event in whole if event.end <= place]


@given(st.lists(st.tuples(LINES, ENDS), max_size=20))
def test_lines_are_the_standards(parts: list[tuple[bytes, bytes]]) -> None:
    data = b"".join(line + end for line, end in parts) + b"rest"
    lines = [line for line, _ in split_lines(data, 0, len(data))]
    expected = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    assert [line for line in lines if line] == [line for line in expected if line]
    assert last_line(data, 0) == b"rest"


def test_unfinished_event_is_kept_apart() -> None:
    lines = EventLines()
    assert [lines.add(line) for line in (b"event: error", b"data: a")] == [None, None]
    assert lines.rest(b"data: b", 7) == Event(b"a\nb", b"error", 7)
    assert EventLines().rest(b": comment", 7) is None


@pytest.mark.parametrize("data", [b"data: " + b"x" * 30, b"data: x\n" * 5, b":" + b"x" * 30 + b"\n"])
def test_too_long_ends_the_parsing(data: bytes) -> None:
    lines = EventLines(largest_event_bytes=20)
    assert [event.data for event in read_events(b"data: a\n\n" + data + b"\n\ndata: b\n\n", lines=lines)] == [b"a"]
    assert lines.overflowed
