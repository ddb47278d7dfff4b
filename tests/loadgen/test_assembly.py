"""Answers from streams: what is read, and which departures are noted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.loadgen import DEFECTS, AssembledCall, assemble_chunks

EVENT_STREAM = {"content-type": "text/event-stream"}
USAGE = {"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def delta(finish_reason: Any = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return {"id": "r", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def chunk(**fields: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [], **fields}


def call(**entry: Any) -> dict[str, Any]:
    function = {key: entry.pop(key) for key in ("name", "arguments") if key in entry}
    return delta(tool_calls=[{**entry, "function": function}])


def read(*payloads: Any, finish: str | None = "tool_calls") -> Any:
    ending = [delta(finish), USAGE] if finish else []
    body = b"".join(map(event, [*payloads, *ending])) + (b"data: [DONE]\n\n" if finish else b"")
    return assemble_chunks([(1.0, body)], EVENT_STREAM)


FIRST = call(index=0, id="a", name="f", arguments='{"x": 1}')
SECOND = {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}

CALL_CASES = [
    pytest.param([FIRST], [(0, "a", "f", '{"x": 1}')], {}, id="one call in one delta"),
    pytest.param(
        [
            call(index=0, id="a", name="f", arguments=""),
            call(index=0, arguments='{"x"'),
            call(index=0, arguments=": 1}"),
        ],
        [(0, "a", "f", '{"x": 1}')],
        {},
        id="arguments in pieces",
    ),
    pytest.param(
        [delta(tool_calls=[FIRST["choices"][0]["delta"]["tool_calls"][0], SECOND])],
        [(0, "a", "f", '{"x": 1}'), (1, "b", "g", "{}")],
        {},
        id="two calls in one delta",
    ),
    pytest.param(
        [FIRST, delta(tool_calls=[SECOND]), call(index=0, arguments=" ")],
        [(0, "a", "f", '{"x": 1} '), (1, "b", "g", "{}")],
        {},
        id="interleaved",
    ),
    pytest.param(
        [FIRST, call(index=0, id="b", name="g", arguments="{}")],
        [(0, "a", "f", '{"x": 1}'), (0, "b", "g", "{}")],
        {"index_reused": 1},
        id="index always 0",
    ),
    pytest.param(
        [call(id="a", name="f", arguments="{"), call(arguments="}"), call(id="b", name="g", arguments="{}")],
        [(0, "a", "f", "{}"), (1, "b", "g", "{}")],
        {"index_missing": 3},
        id="no index",
    ),
    pytest.param(
        [call(index=0, name="f", arguments="{}")], [(0, None, "f", "{}")], {"id_missing": 1}, id="no id at all"
    ),
    pytest.param(
        [call(index=0, id="", name="f", arguments="{"), call(index=0, id="a", arguments="}")],
        [(0, "a", "f", "{}")],
        {"id_missing": 1},
        id="id comes late",
    ),
    pytest.param(
        [delta(tool_calls=[{"index": 0, "function": {"id": "a", "name": "f", "arguments": "{}"}}])],
        [(0, "a", "f", "{}")],
        {"id_in_function": 1},
        id="id inside the function",
    ),
    pytest.param(
        [FIRST, call(index=0, id="z", arguments="")],
        [(0, "a", "f", '{"x": 1}')],
        {"call_id_changed": 1},
        id="id changes without a new name",
    ),
    pytest.param(
        [FIRST, call(index=1, id="a", name="g", arguments="{}")],
        [(0, "a", "f", '{"x": 1}'), (1, "a", "g", "{}")],
        {"id_duplicate": 1},
        id="one id for two calls",
    ),
    pytest.param([call(index=0, id="a", arguments="{}")], [(0, "a", "", "{}")], {"name_missing": 1}, id="no name"),
    pytest.param(
        [call(index=0, id="a", name="f"), call(index=0, name="f", arguments="{}")],
        [(0, "a", "f", "{}")],
        {"duplicate_name": 1},
        id="name again",
    ),
    pytest.param(
        [call(index=0, id="a", name="get_"), call(index=0, name="it", arguments="{}")],
        [(0, "a", "get_it", "{}")],
        {"name_split": 1},
        id="name in pieces",
    ),
    pytest.param(
        [FIRST, call(index=0, name="other")],
        [(0, "a", "f", '{"x": 1}')],
        {"name_changed": 1},
        id="name changes after arguments",
    ),
    pytest.param(
        [call(index=0, id="a", name="f", arguments={"x": "東"})],
        [(0, "a", "f", '{"x": "東"}')],
        {"arguments_object": 1},
        id="arguments are an object",
    ),
    pytest.param(
        [call(index=0, id="a", name="f", arguments=None), call(index=0, arguments="{}")],
        [(0, "a", "f", "{}")],
        {"arguments_null": 1},
        id="arguments are null",
    ),
    pytest.param(
        [FIRST, delta(tool_calls=["x", {"index": 0, "function": 5}])],
        [(0, "a", "f", '{"x": 1}')],
        {"bad_delta": 2},
        id="calls that are none",
    ),
]


@pytest.mark.parametrize(("payloads", "calls", "defects"), CALL_CASES)
def test_tool_calls(payloads: list[Any], calls: list[Any], defects: dict[str, int]) -> None:
    got = read(*payloads)
    assert got.tool_calls == tuple(AssembledCall(*call) for call in calls)
    assert {defect.code: defect.count for defect in got.defects} == defects


STREAM_CASES = [
    pytest.param([delta(content="hi"), delta("stop"), delta(content="!")], "hi!", {"late_chunk"}, id="late output"),
    pytest.param([delta(content="hi"), chunk(id="q")], "hi", {"id_changed"}, id="id changes"),
    pytest.param([delta(content="hi"), chunk(model="n")], "hi", {"model_changed"}, id="model changes"),
    pytest.param([delta(content="hi"), chunk(choices=None)], "hi", {"choices_null"}, id="choices are null"),
    pytest.param([delta(content="hi"), {"usage": {}}], "hi", {"choices_null"}, id="choices are missing"),
    pytest.param([delta(content="hi"), chunk(choices=[7])], "hi", {"bad_delta"}, id="a choice is a number"),
    pytest.param([delta(content=5)], None, {"bad_delta"}, id="content is a number"),
    pytest.param([delta(content=None), delta()], None, set(), id="no content"),
    pytest.param(
        [chunk(choices=[{"index": 1, "delta": {"content": "x"}}])], None, {"unexpected_choice"}, id="choice 1"
    ),
    pytest.param([delta(reasoning="a", reasoning_content="b")], None, {"reasoning_disagrees"}, id="two reasonings"),
    pytest.param([delta(content="\ud83d"), delta(content="\ude80")], "🚀", {"loose_json_event"}, id="split surrogates"),
    pytest.param([delta(content="a", score=float("nan"))], "a", {"loose_json_event"}, id="NaN"),
    pytest.param(
        [chunk(choices=[{"index": 0, "delta": {"content": "a"}, "usage": {}}])],
        "a",
        {"usage_in_choice"},
        id="usage inside",
    ),
    pytest.param([chunk(error=None)], None, set(), id="a null error is none"),
]


@pytest.mark.parametrize(("payloads", "content", "codes"), STREAM_CASES)
def test_streams(payloads: list[Any], content: str | None, codes: set[str]) -> None:
    got = read(*payloads, finish="stop")
    assert got.content == content
    assert {defect.code for defect in got.defects} == codes
    assert got.usage == USAGE["usage"]


@pytest.mark.parametrize(
    ("finish", "payload", "code"),
    [
        ("stop", FIRST, "finish_reason_mismatch"),
        ("tool_calls", delta(content="hi"), "finish_reason_mismatch"),
        ("abort", delta(content="hi"), "unknown_finish_reason"),
        ({"type": "stop"}, delta(content="hi"), "unknown_finish_reason"),
    ],
)
def test_finish_reasons(finish: Any, payload: Any, code: str) -> None:
    assert [defect.code for defect in read(payload, finish=finish).defects] == [code]


CANNED = [
    ("tool_call", None, ("K7Q2ZX81MN4P",), "tool_calls", set()),
    ("two_calls", None, ("K7Q2ZX81MN4P", ""), "tool_calls", set()),
    ("text", "K7Q2ZX81MN4P amber 🚀🔥", (), "stop", set()),
    ("carriage_returns", None, ("K7Q2ZX81MN4P",), "tool_calls", set()),
    ("bare_returns", None, ("K7Q2ZX81MN4P",), "tool_calls", set()),
    ("unusual_forms", None, ("K7Q2ZX81MN4P",), "tool_calls", {"byte_order_mark", "empty_event"}),
    ("no_last_line", None, ("K7Q2ZX81MN4P",), "tool_calls", {"unterminated_event"}),
    ("no_finish_reason", None, ("",), None, {"no_finish_reason", "no_usage", "no_done"}),
    ("no_usage", "K7Q2ZX81MN4P amber 🚀🔥", (), "stop", {"no_usage"}),
    ("no_done", "K7Q2ZX81MN4P amber 🚀🔥", (), "stop", {"no_done"}),
    ("error_object", "K7Q2ZX81MN4P ", (), None, {"in_band_error", "no_finish_reason", "no_usage"}),
    ("error_python", "K7Q2ZX81MN4P ", (), None, {"in_band_error", "no_finish_reason", "no_usage", "no_done"}),
    ("error_event", "", (), None, {"in_band_error", "no_finish_reason", "no_usage", "no_done"}),
    ("only_done", None, (), None, {"no_answer", "no_finish_reason", "no_usage"}),
    ("not_utf8", None, ("K7Q2ZX81MN4P",), "tool_calls", {"bad_json_event"}),
]


@pytest.mark.parametrize(("name", "content", "codes_planted", "finish", "defects"), CANNED, ids=[c[0] for c in CANNED])
def test_canned_streams(stream, name, content, codes_planted, finish, defects) -> None:
    got = assemble_chunks([(1.0, stream(name))], EVENT_STREAM)
    # an opening role chunk brings an empty content, which is text of no length rather than none.
    assert (got.content or None) == (content or None)
    assert len(got.tool_calls) == len(codes_planted)
    assert all(code in call.arguments_text for call, code in zip(got.tool_calls, codes_planted, strict=True))
    assert got.finish_reason == finish
    assert {defect.code for defect in got.defects} == defects


@given(size=st.integers(1, 40), name=st.sampled_from([case[0] for case in CANNED]))
def test_any_cut_gives_the_same_answer(size: int, name: str) -> None:
    from pathlib import Path

    body = (Path(__file__).parents[1] / "data" / "streams" / f"{name}.sse").read_bytes()
    whole = assemble_chunks([(1.0, body)], EVENT_STREAM)
    pieces = [(1.0, body[start : start + size]) for start in range(0, len(body), size)]
    assert assemble_chunks(pieces, EVENT_STREAM) == whole


@given(st.lists(st.tuples(st.sampled_from(["data: ", "data: {", ": "]), st.text()), max_size=5), st.binary(max_size=99))
def test_no_bytes_make_it_raise(lines: list[tuple[str, str]], rest: bytes) -> None:
    body = "".join(start + text + "\n\n" for start, text in lines).encode() + rest
    for headers in (EVENT_STREAM, {"content-type": "application/json"}, {}):
        assert all(d.code in DEFECTS for d in assemble_chunks([(1.0, body)], headers).defects)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "index",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "usage",
                    "error",
                    "content",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON_VALUES, JSON_VALUES)
def test_no_json_makes_it_raise(one: Any, other: Any) -> None:
    bodies = (event(one), event({"choices": [{"delta": one}, {"delta": {"tool_calls": [other]}}]}), event(delta(other)))
    got = assemble_chunks([(1.0, b"".join(bodies))], EVENT_STREAM)
    assert all(defect.code in DEFECTS for defect in got.defects)


def test_json_body_is_read_whole() -> None:
    message = {"role": "assistant", "content": "hi"}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    chunks = [(1.0, json.dumps(body).encode())]
    got = assemble_chunks(chunks, {"content-type": "application/json"}, is_streamed=False)
    assert (got.content, got.finish_reason, got.is_event_stream) == ("hi", "stop", False)
    assert [event.payload for event in got.events] == [body]
    assert got.defects == ()
    # whoever asked for a stream has not got one.
    got = assemble_chunks(chunks, {"content-type": "application/json"})
    assert [defect.code for defect in got.defects] == ["not_event_stream", "no_done"]


def test_times_are_those_of_the_completing_read(stream) -> None:
    events = [part + b"\n\n" for part in stream("tool_call").split(b"\n\n")[:-1]]
    # role, name, three argument pieces, finish, usage, [DONE]: one a second, the second one in two halves.
    pieces = [(float(second), data) for second, data in enumerate(events)]
    pieces[1:2] = [(0.5, events[1][:20]), (1.0, events[1][20:])]
    got = assemble_chunks(pieces, EVENT_STREAM)
    assert (got.first_event_seconds, got.first_choice_seconds, got.first_visible_seconds) == (0.0, 0.0, 1.0)
    assert got.output_seconds.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert got.last_token_seconds == 5.0
    assert got.usage_count("completion_tokens") == 6
    assert got.usage_count("nothing") is None
