"""Streamed chunks, byte for byte against recorded SGLang streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdwatch.stack.embedded.request import TokenLogprob
from pdwatch.stack.embedded.server.logprobs import chat_logprobs
from pdwatch.stack.embedded.server.outputs import RequestFailed
from pdwatch.stack.embedded.server.stream import DONE, ChatChunks, error_event

STREAMS = Path(__file__).parent.parent / "data" / "sglang" / "streams"


def rewrite(event: dict) -> bytes:
    """The chunk this server writes for what a recorded event says."""
    chunks = ChatChunks(event["id"], event["created"], event["model"])
    if not event["choices"]:
        return chunks.usage(event["usage"])
    choice = event["choices"][0]
    delta, logprobs = choice["delta"], choice["logprobs"]
    if choice["finish_reason"] is not None:
        return chunks.finish(choice["finish_reason"], choice["matched_stop"])
    if "role" in delta:
        return chunks.role()
    if "content" in delta:
        return chunks.content(delta["content"], logprobs)
    return chunks.nothing(logprobs)


@pytest.mark.parametrize("name", ["chat_stream", "chat_stream_logprobs"])
def test_chunks_are_those_of_sglang(name: str) -> None:
    recorded = (STREAMS / f"{name}.body").read_bytes()
    events = [line for line in recorded.split(b"\n\n") if line]
    assert events[-1] + b"\n\n" == DONE
    assert len(events) > 5
    for event in events[:-1]:
        assert rewrite(json.loads(event.removeprefix(b"data: "))) == event + b"\n\n"


def test_tool_call_chunks_are_those_of_openai_deltas() -> None:
    chunks = ChatChunks("c", 7, 'a "model"')
    start = json.loads(chunks.call_start(1, "call_0", 'say "hi"', None).removeprefix(b"data: "))
    piece = json.loads(chunks.call_arguments(1, '{"x": "é', None).removeprefix(b"data: "))
    assert start["model"] == 'a "model"'
    assert start["choices"][0]["delta"]["tool_calls"] == [
        {"id": "call_0", "index": 1, "type": "function", "function": {"name": 'say "hi"', "arguments": ""}}
    ]
    assert piece["choices"][0]["delta"]["tool_calls"] == [
        {"id": None, "index": 1, "type": "function", "function": {"name": None, "arguments": '{"x": "é'}}
    ]


def test_logprobs_have_the_recorded_shape() -> None:
    recorded = json.loads((STREAMS / "chat_plain_logprobs.body").read_bytes())["choices"][0]["logprobs"]
    written = chat_logprobs([TokenLogprob(35, -4.957331657409668, top=((-4.957331657409668, 35), (-5.25, 13)))])
    assert written is not None
    first = recorded["content"][0]
    assert written["content"][0].keys() == first.keys()
    assert written["content"][0]["top_logprobs"][0] == first["top_logprobs"][0]


def test_an_error_in_the_stream_is_an_error_object() -> None:
    event = json.loads(error_event(RequestFailed(500, "InternalServerError", "lost")).removeprefix(b"data: "))
    assert event == {
        "error": {"object": "error", "message": "lost", "type": "InternalServerError", "param": None, "code": 500}
    }
