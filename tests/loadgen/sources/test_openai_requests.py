"""A user's own requests: what is kept, what is set, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdwatch.loadgen import PlanError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
REQUEST: dict[str, Any] = {
    "model": "theirs",
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "höflich 🚀"}],
    "tools": [TOOL],
    "temperature": 0.6,
    "max_tokens": 64,
    "stream": False,
    "chat_template_kwargs": {"thinking": True},
}


def body(work) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(work.body)
    return sent


def test_requests_stand_as_they_are(open_kind, write_lines) -> None:
    path = write_lines([REQUEST])
    work = open_kind("openai_requests", path=path).work(1, "candidate")
    assert body(work) == REQUEST | {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert (work.is_streamed, work.promises_usage) == (True, True)
    assert work.provenance == {
        "source": "openai_requests",
        "family": "openai_requests",
        "file": "rows.jsonl",
        "row": 1,
        "seed": 7,
    }
    assert work.task is not None
    assert (work.task.nonce, work.task.expected_calls, work.task.expected_text) == ("", (), None)
    assert list(work.task.tools) == [TOOL]


def test_what_may_be_kept_and_set(open_kind, write_lines) -> None:
    streamed = REQUEST | {"stream": True}
    path = write_lines([REQUEST, streamed, streamed | {"stream_options": {"include_usage": True}}])
    source = open_kind("openai_requests", path=path, order="file", stream="keep", keeps_model=True)
    works = [source.work(number, "candidate") for number in range(3)]
    assert [body(work) for work in works] == [json.loads(line) for line in path.read_text().splitlines()]
    # a whole answer always holds usage, a stream only when asked
    assert [(work.is_streamed, work.promises_usage) for work in works] == [(False, True), (True, False), (True, True)]
    limited = body(open_kind("openai_requests", path=path, max_tokens=5).work(1, "candidate"))
    assert limited["max_tokens"] == 5
    assert "max_completion_tokens" not in limited
    whole = open_kind("openai_requests", path=path, streamed_share=0).work(1, "candidate")
    assert body(whole)["stream"] is False
    assert "stream_options" not in body(whole)


def test_lines_of_other_tools(open_kind, write_lines) -> None:
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": REQUEST}
    trace = {"timestamp_seconds": 0.5, "body": REQUEST}
    labelled = {**REQUEST, "should_call_tool": True}
    bare = {"messages": REQUEST["messages"], "tools": None, "should_call_tool": False}
    path = write_lines([batch, trace, labelled, bare])
    source = open_kind("openai_requests", path=path, order="file", stream="keep", keeps_model=True)
    works = [source.work(number, "candidate") for number in range(4)]
    assert [body(work) for work in works[:3]] == [REQUEST] * 3
    assert [work.provenance.get("expects") for work in works] == [None, None, "call", "no_call"]
    assert body(works[3]) == {"messages": REQUEST["messages"], "tools": None, "model": "m"}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "user", "content": None}],
        [{"role": "system", "content": "a"}],
    ],
)
def test_a_code_finds_leaks(open_kind, write_lines, messages: list[dict[str, Any]]) -> None:
    source = open_kind("openai_requests", path=write_lines([{"messages": messages}]), plants_nonce=True)
    one, other = source.work(1, "candidate"), source.work(1, "baseline")
    assert one.task is not None and other.task is not None
    assert one.body.count(one.task.nonce.encode()) == 1
    assert one.body == other.body.replace(other.task.nonce.encode(), one.task.nonce.encode())
    assert [message["role"] for message in body(one)["messages"]][: len(messages)] == [
        message["role"] for message in messages
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ([], r"is \[\]; each line must be one JSON object"),
        ("text", "is 'text'; each line must be one JSON object"),
        ({"prompt": "x"}, "has no messages; only chat requests can be sent"),
        ({"messages": []}, "has no messages"),
        ({"messages": ["x"]}, r"messages\[0\] is 'x'; it needs a role"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\] is .* it needs a role"),
        ({**REQUEST, "tools": {}}, "tools is {}; give a list or leave it out"),
        ({**REQUEST, "tools": [{"name": "f"}]}, r"tools\[0\] is .* it needs a function with a name"),
        ({**REQUEST, "stream": "yes"}, "stream is 'yes'; give true or false"),
        ({**REQUEST, "stream_options": True}, "stream_options is True"),
        ({"url": "/v1/embeddings", "body": {"input": "x"}}, "goes to url '/v1/embeddings'"),
    ],
)
def test_bad_lines(open_kind, write_lines, line: Any, complaint: str) -> None:
    path = write_lines([REQUEST, line])
    with pytest.raises(PlanError, match=f"rows.jsonl: line 2 {complaint}"):
        open_kind("openai_requests", path=path)
