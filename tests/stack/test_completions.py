"""The chat endpoint as an ASGI application, fed with chosen tokens in place of an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from pdwatch.stack.embedded.collector import WorkerFacts
from pdwatch.stack.embedded.faults import Fault, load
from pdwatch.stack.embedded.metrics import WorkerMetrics
from pdwatch.stack.embedded.request import FinishReason, Output, Request
from pdwatch.stack.embedded.server.application import Application
from pdwatch.stack.embedded.server.completions import ChatCompletions
from pdwatch.stack.embedded.server.outputs import OutputStream, RequestFailed
from pdwatch.stack.embedded.tokens import ARGUMENT, CALL, CALLS, END, EOS

TOOLS = [{"type": "function", "function": {"name": "send_alert", "parameters": {"type": "object", "properties": {}}}}]
ARGUMENTS = '{"city": "東京", "count": 4}'
CALL_TOKENS = [
    CALLS, CALL, *b"send_alert", ARGUMENT, *b"city=", *'"東京"'.encode(), ARGUMENT, *b"count=4", END,
    CALL, *b"ping", END, EOS,
]  # fmt: skip
STOP = FinishReason("stop", matched=EOS)
Step = Output | RequestFailed


def outputs(tokens: list[int], finish: FinishReason | None = STOP, batch: int = 2) -> list[Step]:
    """One token a step, as the engine gives them."""
    last = len(tokens) - 1
    return [
        Output("r", [token], None, finish if place == last else None, None, 0, batch, 0)
        for place, token in enumerate(tokens)
    ]


class Feed:
    """Stands in for the service: delivers its steps one by one."""

    def __init__(self, steps: list[Step]) -> None:
        facts = WorkerFacts("m", "decode", 64, 64, 2, 64, 0.0, 0.0, 0.0, 0.0, None)
        self.metrics = WorkerMetrics(facts, lambda: pytest.fail("nobody scrapes"))
        self.steps = steps
        self.closed: list[bool] = []
        self.task: asyncio.Task[None] | None = None

    def open(self, request: Request, rendezvous: object) -> OutputStream:
        stream = OutputStream(request, self.metrics)
        self.task = asyncio.create_task(self._deliver(stream))
        return stream

    def close(self, stream: OutputStream) -> None:
        self.closed.append(stream.ended)

    async def _deliver(self, stream: OutputStream) -> None:
        for step in self.steps:
            await asyncio.sleep(0)
            if isinstance(step, RequestFailed):
                stream.fail(step)
            else:
                stream.deliver(step, stream.created + 1.0)


class Answer:
    """What an ASGI server was told to send."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""
        self.complete = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]
            self.complete = not message["more_body"]

    @property
    def events(self) -> list[Any]:
        lines = [line.removeprefix(b"data: ") for line in self.body.split(b"\n\n") if line]
        return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


async def ask(
    steps: list[Step], *, fault: Fault | None = None, gone: Callable[[], Any] | None = None, **body: Any
) -> tuple[Answer, Feed]:
    feed, answer = Feed(steps), Answer()
    completions = ChatCompletions(feed, fault or Fault(), "m", 4096)  # type: ignore[arg-type]  # a stand-in
    application = Application(feed.metrics, completions, None, _Nothing(), _Nothing())  # type: ignore[arg-type]  # a stand-in
    whole = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "stream": True} | body
    messages = [{"type": "http.request", "body": json.dumps(whole).encode(), "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        if gone is not None:
            await gone()
            return {"type": "http.disconnect"}
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await application(scope, receive, answer.send)
    return answer, feed


class _Nothing:
    def __getattr__(self, name: str) -> None:
        return None


def assembled(events: list[Any]) -> list[dict[str, str]]:
    calls: list[dict[str, str]] = []
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) else []:
            for delta in choice["delta"].get("tool_calls", []):
                if delta["id"] is not None:
                    calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return calls


async def test_tool_calls_stream_in_pieces() -> None:
    answer, feed = await ask(outputs(CALL_TOKENS), stream_options={"include_usage": True})
    *chunks, finish, usage, done = answer.events
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [(call["name"], call["arguments"]) for call in assembled(chunks)] == [
        ("send_alert", ARGUMENTS),
        ("ping", "{}"),
    ]
    assert all(call["id"].startswith("call_") and len(call["id"]) == 29 for call in assembled(chunks))
    assert (finish["choices"][0]["finish_reason"], finish["choices"][0]["matched_stop"]) == ("tool_calls", EOS)
    # EOS is counted, as SGLang does.
    assert usage["usage"]["completion_tokens"] == len(CALL_TOKENS)
    assert done == "[DONE]"
    assert answer.complete
    assert feed.closed[-1] is True


async def test_a_whole_answer_has_the_same_calls() -> None:
    answer, _ = await ask(outputs(CALL_TOKENS), stream=False, return_token_ids=True)
    choice = json.loads(answer.body)["choices"][0]
    calls = [
        (call["index"], call["function"]["name"], call["function"]["arguments"])
        for call in choice["message"]["tool_calls"]
    ]
    assert calls == [(0, "send_alert", ARGUMENTS), (1, "ping", "{}")]
    assert choice["message"]["content"] is None
    assert choice["token_ids"] == CALL_TOKENS


async def test_the_role_comes_with_the_first_token() -> None:
    answer, _ = await ask(outputs([*"é".encode(), EOS]))
    role, content, finish, done = answer.events
    # the first of two bytes completes no character, the role chunk marks it all the same.
    assert role["choices"][0]["delta"]["content"] == ""
    assert content["choices"][0]["delta"]["content"] == "é"
    assert (finish["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")


async def test_without_tools_calls_are_shown_as_they_are() -> None:
    answer, _ = await ask(outputs([CALLS, *b"a", EOS]), stream=False, tool_choice="none")
    message = json.loads(answer.body)["choices"][0]["message"]
    assert (message["content"], message["tool_calls"]) == ("<CALLS>a", None)


async def test_a_named_call_goes_on_from_its_name() -> None:
    named = {"type": "function", "function": {"name": "send_alert"}}
    tokens = [ARGUMENT, *b"a=1", END, EOS]
    answer, _ = await ask(outputs(tokens), stream=False, tool_choice=named)
    body = json.loads(answer.body)
    (call,) = body["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("send_alert", '{"a": 1}')
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    # what was begun in the prompt is not counted again.
    assert body["usage"]["completion_tokens"] == len(tokens)


async def test_a_call_cut_by_length_keeps_its_finish_reason() -> None:
    answer, _ = await ask(outputs(CALL_TOKENS[:20], FinishReason("length")))
    assert answer.events[-2]["choices"][0]["finish_reason"] == "length"


DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]
NESTED = {
    "tools": {"tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": DEEP}}}}}]},
    "role": {"messages": [{"role": DEEP, "content": "x"}]},
    "logit_bias": {"logit_bias": {"1": DEEP}},
    "tool_choice": {"tool_choice": DEEP},
}


@pytest.mark.parametrize("fields", NESTED.values(), ids=NESTED.keys())
async def test_a_body_nested_too_deeply_is_refused(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def nested(receive: object) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS} | fields

    # given in place of the body's JSON: orjson refuses some depths itself, json.dumps cannot write any of them.
    monkeypatch.setattr("pdwatch.stack.embedded.server.completions.read_json", nested)
    answer, _ = await ask([])
    assert answer.status == 400
    assert json.loads(answer.body)["message"] == "the body is nested too deeply"


async def test_a_failure_before_the_first_token_has_a_status() -> None:
    answer, _ = await ask([RequestFailed(500, "InternalServerError", "KV transfer failed")])
    assert answer.status == 500
    assert json.loads(answer.body)["message"] == "KV transfer failed"


async def test_a_failure_after_it_is_told_in_the_stream() -> None:
    answer, _ = await ask([*outputs([*b"hi"], None), RequestFailed(500, "InternalServerError", "lost")])
    assert answer.status == 200
    assert answer.events[-2:] == [
        {"error": {"object": "error", "message": "lost", "type": "InternalServerError", "param": None, "code": 500}},
        "[DONE]",
    ]
    assert answer.complete


async def test_a_client_that_goes_away_closes_the_request() -> None:
    feeds: list[bool] = []

    async def gone() -> None:
        feeds.append(True)

    _, feed = await ask(outputs([*b"hi", EOS]), gone=gone)
    assert feeds == [True]
    # once by the watcher while the answer ran, once at its end.
    assert len(feed.closed) == 2


async def test_the_fault_that_truncates_streams_only_ends_them_early() -> None:
    fault = load("stream_truncated", 0)
    cut = next(seed for seed in range(100) if load("stream_truncated", seed).cut_stream(0, 2))
    answer, _ = await ask(outputs(CALL_TOKENS), fault=load("stream_truncated", cut))
    assert answer.complete
    assert "[DONE]" not in answer.events
    assert all(event["choices"][0]["finish_reason"] is None for event in answer.events)
    alone, _ = await ask(outputs(CALL_TOKENS, batch=1), fault=fault)
    assert alone.events[-1] == "[DONE]"


class EveryFragmentLost(Fault):
    def stream_fragment(self, fragment: str, batch: int) -> str:
        return "" if batch > 1 else fragment


async def test_the_fault_that_loses_arguments_only_acts_when_streaming() -> None:
    streamed, _ = await ask(outputs(CALL_TOKENS), fault=EveryFragmentLost())
    assert [call["arguments"] for call in assembled(streamed.events)] == ["", ""]
    assert streamed.events[-1] == "[DONE]"
    whole, _ = await ask(outputs(CALL_TOKENS), fault=EveryFragmentLost(), stream=False)
    assert ARGUMENTS in json.loads(whole.body)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
