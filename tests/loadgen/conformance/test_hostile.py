"""What no server should send: nothing crashes, hangs or takes memory without bound, and each is told for what it is.

Sizes are chosen so that anything worse than linear would take minutes.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from pdwatch.loadgen import Outcome, Transcript, assemble
from pdwatch.loadgen.assembly import assemble_body
from pdwatch.loadgen.body import Body
from pdwatch.loadgen.calls import MOST_CALLS

EVENT_STREAM = {"content-type": "text/event-stream"}
MEGABYTE = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
DEEP = b"[" * 200_000


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(delta: Any, **more: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


def raw(delta: bytes) -> bytes:
    """An event whose delta is written as it stands."""
    return b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":%s}]}\n\n' % delta


def call(**entry: Any) -> bytes:
    return event(chunk({"tool_calls": [entry]}))


def many_calls(count: int) -> Iterator[bytes]:
    for index in range(count):
        yield raw(b'{"tool_calls":[{"index":%d}]}' % index)


GOOD = event(chunk({"content": "before "})) + event(chunk({"content": "and after"}))
FIRST = call(index=0, id="a", type="function", function={"name": "f", "arguments": ""})

BODIES = {
    "one event of 10 MB": (GOOD + event(chunk({"content": "x" * 10 * MEGABYTE})), "oversized_event"),
    "an event of 5 MB in small lines": (
        GOOD + b"data: x" * 3 + b"\n" + b"data: x\n" * (5 * MEGABYTE // 8),
        "oversized_event",
    ),
    "one line of 10 MB that never ends": (GOOD + b"data: " + b"x" * 10 * MEGABYTE, "oversized_event"),
    "one comment of 10 MB": (GOOD + b":" + b"x" * 10 * MEGABYTE + b"\n\n", "oversized_event"),
    "10 MB of empty lines": (GOOD + b"\n" * 10 * MEGABYTE, "no_done"),
    "10 MB of empty lines with returns": (GOOD + b"\r\n" * 5 * MEGABYTE, "no_done"),
    "10 MB of bare returns": (GOOD + b"\r" * 10 * MEGABYTE, "no_done"),
    "30,000 empty comments": (GOOD + b":\n\n" * 30_000, "no_done"),
    "30,000 empty events": (GOOD + b"data:\n\n" * 30_000, "empty_event"),
    "30,000 empty lines after an id": (GOOD + b"id: 1\n" + b"\n:\n" * 30_000, "empty_event"),
    "deeply nested JSON": (GOOD + b"data: " + DEEP + b"]" * len(DEEP) + b"\n\n", "bad_json_event"),
    "deeply nested JSON that never closes": (GOOD + b"data: " + DEEP + b"\n\n", "bad_json_event"),
    "a nested delta": (GOOD + raw(b"[" * 900 + b"]" * 900), "bad_delta"),
    "nested arguments": (
        GOOD
        + FIRST
        + raw(b'{"tool_calls":[{"index":0,"function":{"arguments":%s1%s}}]}' % (b'{"a":' * 900, b"}" * 900)),
        "arguments_object",
    ),
    "an event of NUL bytes": (GOOD + b"data: " + b"\0" * MEGABYTE + b"\n\n", "bad_json_event"),
    "NUL bytes in a text": (GOOD + event(chunk({"content": "\0" * 1000})), "no_done"),
    "UTF-16": (GOOD + b"data: " + '{"choices":[]}'.encode("utf-16") + b"\n\n", "bad_json_event"),
    "30,000 lone surrogates": (GOOD + event(chunk({"content": "\ud83d"})) * 30_000, "loose_json_event"),
    "a name of 1 MB": (GOOD + call(index=0, id="a", type="function", function={"name": "n" * MEGABYTE}), "no_done"),
    "a name in 100,000 pieces": (FIRST + call(index=0, function={"name": "nm"}) * 100_000, "name_split"),
    "100,000 names after the arguments": (
        FIRST + call(index=0, function={"arguments": "{"}) + call(index=0, function={"name": "n" * 50}) * 100_000,
        "name_changed",
    ),
    "30,000 calls": (b"".join(many_calls(30_000)), "too_many_calls"),
    "100,000 calls in one event": (
        event(chunk({"tool_calls": [{"index": i} for i in range(100_000)]})),
        "too_many_calls",
    ),
    "30,000 ids for one call": (
        FIRST + b"".join(call(index=0, id=str(i), function={"arguments": "x"}) for i in range(30_000)),
        "call_id_changed",
    ),
    "10,000 errors of 1 KB": (event({"error": "e" * 1000}) * 10_000, "in_band_error"),
    "a number of 1 MB": (GOOD + b'data: {"a":' + b"1" * MEGABYTE + b"}\n\n", "bad_json_event"),
    "an event of 300,000 keys": (GOOD + event(dict.fromkeys(map(str, range(300_000)), 0)), "choices_null"),
    "300,000 choices": (GOOD + event({**chunk({}), "choices": [{}] * 300_000}), "choice_index_missing"),
    "a long finish_reason": (
        GOOD + event({**chunk({}), "choices": [{"index": 0, "delta": {}, "finish_reason": ["x" * 1000] * 1000}]}),
        "unknown_finish_reason",
    ),
    "a surrogate for everything": (
        event({**chunk({"role": "\ud800", "content": "\ud800"}), "id": "\ud800", "model": "\ud800"})
        + call(index=0, id="\ud800", function={"name": "\ud800", "arguments": "\ud800"}),
        "loose_json_event",
    ),
    "an array of arrays as a document": (DEEP, "no_answer"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    data, code = BODIES[name]
    body = Body.from_chunks([(1.0, data)])
    for headers in (EVENT_STREAM, {"content-type": "application/json"}):
        got = assemble_body(body, headers)
        # whatever is told can be stored and sent on.
        json.dumps([(defect.code, defect.detail) for defect in got.defects], ensure_ascii=False).encode()
        json.dumps([got.content, got.role, got.model, got.response_id, got.finish_reason, got.errors]).encode()
        "".join(call.name + call.arguments_text + (call.id or "") for call in got.tool_calls).encode()
        assert all(len(defect.detail) <= 200 for defect in got.defects)
    tracemalloc.start()
    got = assemble_body(body, EVENT_STREAM)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # JSON grows when it is read; an event is at most 4 MB.
    assert most_bytes < 40 * min(len(data), 4 * MEGABYTE) + 2 * len(data) + 16 * MEGABYTE
    assert code in {defect.code for defect in got.defects}
    if data.startswith(GOOD):
        assert (got.content or "").startswith("before and after")
    assert len(got.tool_calls) <= MOST_CALLS
    assert got.strict.error is None or len(got.strict.error) <= 300


def test_a_million_tiny_deltas() -> None:
    delta = b'data:{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    body = Body.from_chunks([(1.0, delta * 1_000_000)])
    got = assemble_body(body, EVENT_STREAM)
    assert (got.content, len(got.output_seconds)) == ("a" * 1_000_000, 1_000_000)


@pytest.mark.parametrize("piece", [1, 7], ids=["bytes", "7 bytes"])
def test_a_megabyte_in_tiny_reads(piece: int) -> None:
    data = GOOD + event(chunk({"content": "x" * MEGABYTE}))
    body = Body.from_chunks((float(start), data[start : start + piece]) for start in range(0, len(data), piece))
    got = assemble_body(body, EVENT_STREAM)
    assert len(got.content or "") == MEGABYTE + len("before and after")
    assert got.output_seconds[-1] == float(len(data) - 1 - (len(data) - 1) % piece)


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FIRST_CHUNK = b"%x\r\n%s\r\n" % (len(GOOD), GOOD)
NO_HTTP = "not an HTTP response"
WIRES = {
    "a chunk size of 2^60": (CHUNKED + FIRST_CHUNK + b"fffffffffffffff\r\n" + GOOD, Outcome.RESET, ""),
    "a chunk size beyond 64 bits": (CHUNKED + FIRST_CHUNK + b"f" * 17 + b"\r\n" + GOOD, Outcome.HTTP_ERROR, NO_HTTP),
    "a chunk size of a megabyte": (CHUNKED + FIRST_CHUNK + b"0" * MEGABYTE + b"1\r\nx\r\n", None, ""),
    "a negative chunk size": (CHUNKED + FIRST_CHUNK + b"-5\r\n", Outcome.HTTP_ERROR, NO_HTTP),
    "a content-length beyond 64 bits": (
        HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + GOOD,
        Outcome.HTTP_ERROR,
        NO_HTTP,
    ),
    "a negative content-length": (HEAD + b"Content-Length: -1\r\n\r\n" + GOOD, Outcome.HTTP_ERROR, NO_HTTP),
    "two lengths": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + FIRST_CHUNK, None, ""),
    "a header of a megabyte": (HEAD + b"X-Long: " + b"x" * MEGABYTE + b"\r\n\r\n", Outcome.HTTP_ERROR, "head is over"),
    "a million headers": (HEAD + b"X: y\r\n" * MEGABYTE + b"\r\n", Outcome.HTTP_ERROR, "head is over"),
    "endless early hints": (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50_000, Outcome.HTTP_ERROR, "head is over"),
    "a megabyte before the head": (b"\r\n" * MEGABYTE, Outcome.HTTP_ERROR, ""),
    "bytes that are no HTTP": (bytes(range(256)) * 4096, Outcome.HTTP_ERROR, ""),
    "NUL bytes in a header": (b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n", Outcome.HTTP_ERROR, NO_HTTP),
    "a switch of protocols": (
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        Outcome.HTTP_ERROR,
        "",
    ),
    "more than was allowed": (
        CHUNKED + b"%x\r\n" % (40 * MEGABYTE) + GOOD + b":" * (40 * MEGABYTE),
        Outcome.TRUNCATED,
        "over",
    ),
    "a million trailers": (CHUNKED + FIRST_CHUNK + b"0\r\n" + b"X: y\r\n" * MEGABYTE + b"\r\n", None, ""),
}


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("size", [None, 1000], ids=["at once", "writes of 1000"])
def test_wires(serve, asker, name: str, size: int | None) -> None:
    data, outcome, detail = WIRES[name]

    def play(connection, request) -> bool:
        for start in range(0, len(data), size or len(data)):
            connection.sendall(data[start : start + (size or len(data))])
        return False

    transcript: Transcript = asker(serve(play).url, most_response_bytes=32 * MEGABYTE)()
    if outcome is not None:
        assert transcript.outcome is outcome
    assert transcript.outcome is not Outcome.COMPLETE
    assert detail in transcript.outcome_detail
    assert len(transcript.body) <= 33 * MEGABYTE
    assert assemble(transcript).finish_reason is None
