"""The quick way reads what the full way reads, and where the strict reading differs there is a defect."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdwatch.loadgen import DEFECTS
from pdwatch.loadgen.assembly import Assembled, assemble_body
from pdwatch.loadgen.body import Body
from pdwatch.loadgen.strict import StrictReading, read_strictly

EVENT_STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}

TEXTS = st.sampled_from(
    ["", "a", " b", '"', "\\", "\n", "東", "🚀", "\ud83d", "\ude80", "pdwatch", '"content":"', "}{", "\0"]
)
LEAVES = st.none() | st.booleans() | st.sampled_from([0, 1, -1, 2, 1.0, 2**70, float("nan")]) | TEXTS
KEYS = st.sampled_from(
    "id object model choices index delta message role content reasoning reasoning_content reasoning_details refusal "
    "text tool_calls function function_call type name arguments finish_reason usage completion_tokens error "
    "token_ids logprobs".split()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def deltas(draw: st.DrawFn) -> dict[str, Any]:
    """A delta as servers send them, or nearly."""
    kind = draw(st.sampled_from(["content", "content", "reasoning_content", "call", "call", "both", "empty"]))
    if kind == "empty":
        return draw(st.sampled_from([{}, {"content": ""}, {"content": None}, {"role": "assistant", "content": ""}]))
    if kind != "call" and kind != "both":
        beside: dict[str, Any] = draw(st.sampled_from([{}, {}, {"role": "assistant"}, {"reasoning_content": None}]))
        return {kind: draw(TEXTS), **beside}
    entry: dict[str, Any] = {"index": draw(st.sampled_from([0, 0, 0, 1]))}
    if draw(st.integers(0, 3)) == 0:
        entry |= {"id": draw(st.sampled_from(["", "a", "b", None])), "type": "function"}
    function: dict[str, Any] = {"arguments": draw(TEXTS)}
    if draw(st.integers(0, 3)) == 0:
        function["name"] = draw(st.sampled_from(["f", "g", "", None]))
    return {"tool_calls": [{**entry, "function": function}], **({"content": draw(TEXTS)} if kind == "both" else {})}


@st.composite
def chunks(draw: st.DrawFn) -> dict[str, Any]:
    """A chunk as servers send them, with one place of it spoilt now and then."""
    choice: dict[str, Any] = {"index": 0, "delta": draw(deltas()), "logprobs": None, "finish_reason": None}
    chunk: dict[str, Any] = {"id": "r", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    kind = draw(st.integers(0, 20))
    if kind == 0:
        choice["finish_reason"] = draw(st.sampled_from(["stop", "tool_calls", "length", ""]))
    elif kind == 1:
        chunk = {**chunk, "choices": [], "usage": {"completion_tokens": draw(st.integers(0, 5))}}
    elif kind == 2:
        chunk["usage"] = {"completion_tokens": draw(st.integers(0, 5))}
    elif kind == 3:
        choice["token_ids"] = [1] * draw(st.integers(0, 3))
    elif kind == 4:
        del choice["delta"]
        chunk["object"], choice["text"] = "text_completion", draw(TEXTS)
    elif kind <= 7:
        chunk = spoilt(chunk, draw)
    return chunk


def spoilt(value: Any, draw: st.DrawFn) -> Any:
    """The value with one place deep in it dropped, replaced or added."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, inner in list(node.items()) if isinstance(node, dict) else list(enumerate(node)):
            places.append((node, key))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(value)
    holder, key = draw(st.sampled_from(places))
    action = draw(st.integers(0, 2))
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = draw(VALUES)
    elif isinstance(holder, dict):
        holder[draw(KEYS)] = draw(VALUES)
    else:
        holder.append(draw(VALUES))
    return value


ODD_EVENTS = [
    *(b": ping", b": \xff", b"", b"id: 1", b"retry: 1", b"event: x", b"event: error\ndata: {}"),
    *(b"data:", b"data: x", b"data: 5", b"data: null", b"data: {\n", b'data: {"a":"\xff"}'),
    *(b"data: [DONE]", b"data:  [DONE]", b"data: [DONE]x", b"data: {'error': 1}", b'data: {"error":"x"}'),
]
OTHER_TEXTS = [b'"b"', b'""', b'"\\n"', b'"\\ud83d"', b'"\xe6\x9d\xb1"', b"a"]


@st.composite
def events(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 30)) == 0:
        return draw(st.sampled_from(ODD_EVENTS))
    colon = draw(st.sampled_from([":", ": "]))
    text = json.dumps(draw(chunks()), ensure_ascii=draw(st.booleans()), separators=(",", colon))
    return draw(st.sampled_from([b"data: ", b"data: ", b"data: ", b"data:"])) + text.encode("utf-8", "surrogatepass")


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of such events. Whole runs of one event make the quick way find its templates."""
    parts: list[bytes] = [b"\xef\xbb\xbf"] if draw(st.integers(0, 20)) == 0 else []
    for _ in range(draw(st.integers(0, 5))):
        one = draw(events())
        for _ in range(draw(st.sampled_from([1, 1, 2, 5]))):
            parts += [one, b"\n\n"]
            if draw(st.integers(0, 2)) == 0:
                one = one.replace(b'"a"', draw(st.sampled_from(OTHER_TEXTS)))
    if draw(st.integers(0, 3)):
        parts += [b"data: [DONE]\n\n"]
    data = b"".join(parts)
    if draw(st.integers(0, 5)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    return data.replace(b"\n", draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"])))


def cut(data: bytes, places: list[int]) -> Body:
    """The data as reads that end at these places, one a second."""
    edges = sorted({min(place, len(data)) for place in places} | {len(data)})
    starts = [0, *edges]
    return Body.from_chunks((float(index), data[starts[index] : end]) for index, end in enumerate(edges))


# what the table says both readings take alike.
SAME = frozenset(code for code, text in DEFECTS.items() if text.endswith("strict: the same"))


def lenient(got: Assembled) -> StrictReading:
    return StrictReading(None, got.content, got.refusal, got.tool_calls, got.finish_reason, got.usage)


@given(data=streams(), places=st.lists(st.integers(0, 2000), max_size=20))
def test_the_quick_way_reads_what_the_full_way_reads(data: bytes, places: list[int]) -> None:
    body = cut(data, places)
    quick = assemble_body(body, EVENT_STREAM)
    assert quick == assemble_body(body, EVENT_STREAM, is_quick=False)
    assert all(defect.code in DEFECTS for defect in quick.defects)


@given(data=streams())
def test_where_the_strict_reading_differs_there_is_a_defect(data: bytes) -> None:
    body = cut(data, [])
    got = assemble_body(body, EVENT_STREAM)
    strict = read_strictly(body, is_streamed=True)
    if {defect.code for defect in got.defects} <= SAME:
        assert strict == lenient(got)
    assert got.strict == strict


@given(st.lists(chunks(), max_size=1), VALUES)
def test_documents_too(answers: list[dict[str, Any]], value: Any) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    choice = {"index": 0, "message": {"content": "a", "tool_calls": [call]}, "finish_reason": "stop"}
    whole = {"choices": [choice], "usage": {"completion_tokens": 1}}
    for document in (*answers, {**whole, "usage": value}, {**whole, "choices": [{**choice, "message": value}]}):
        body = cut(json.dumps(document).encode(), [])
        got = assemble_body(body, JSON, is_streamed=False)
        if {defect.code for defect in got.defects} <= SAME:
            assert read_strictly(body, is_streamed=False) == lenient(got)
