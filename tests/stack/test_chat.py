"""Chat requests as routers send them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdwatch.stack.embedded.server.chat import parse_chat
from pdwatch.stack.embedded.server.outputs import RequestFailed
from pdwatch.stack.embedded.template import render_prompt
from pdwatch.stack.embedded.tokens import CALL, CALLS

DATA = Path(__file__).parent.parent / "data" / "sglang"
MESSAGES = [{"role": "user", "content": "Please say hello."}]
NAME = "get_time"
TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}]
# BOS, SYSTEM, USER, 17 bytes, ASSISTANT
PROMPT_TOKENS = 1 + 1 + 1 + 17 + 1


def parse(**body: Any) -> Any:
    return parse_chat({"messages": MESSAGES} | body, "served", 100)


def routed_bodies() -> list[dict[str, Any]]:
    recorded = "".join((DATA / f"router_to_{name}.jsonl").read_text() for name in ("prefill", "decode"))
    lines = [json.loads(line) for line in recorded.splitlines()]
    return [line["body"] for line in lines if line["path"] == "/v1/chat/completions" and line["kind"] == "req"]


def test_every_recorded_router_body_is_accepted() -> None:
    bodies = routed_bodies()
    assert len(bodies) == 4
    for body in bodies:
        chat = parse_chat(body, "served", 4096)
        assert chat.request.room == body["bootstrap_room"]
        assert chat.rendezvous is not None
        assert (chat.rendezvous.host, chat.rendezvous.port) == ("127.0.0.1", 8998)
        assert chat.request.prompt_ids == render_prompt(body["messages"], body["tools"])
        assert chat.request.sampling.max_new_tokens == 64
        assert (chat.request.sampling.seed, chat.request.sampling.temperature) == (7, 0.0)
        assert (chat.request.return_logprob, chat.request.top_logprobs) == (True, 2)
        assert chat.request.stream == body["stream"]
        assert chat.include_usage == body["stream"]
        assert chat.model == "deepseek-ai/DeepSeek-V4-Flash"


def test_defaults_are_those_of_sglang() -> None:
    chat = parse()
    # the context has 100 tokens; without a limit the answer may fill it.
    assert chat.request.sampling.max_new_tokens == 100 - PROMPT_TOKENS
    assert (chat.request.sampling.temperature, chat.request.sampling.top_p) == (1.0, 1.0)
    assert chat.model == "served"
    assert not chat.request.stream
    assert chat.rendezvous is None


@pytest.mark.parametrize(
    ("choice", "offered", "parsed"),
    [("auto", True, True), (None, True, True), ("none", False, False)],
    ids=["auto", "absent", "none"],
)
def test_tool_choice_decides_whether_tools_are_offered(choice: str | None, offered: bool, parsed: bool) -> None:
    chat = parse_chat({"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}, "served", 4096)
    assert (chat.request.prompt_ids == render_prompt(MESSAGES, TOOLS)) is offered
    assert chat.parse_calls is parsed


@pytest.mark.parametrize(
    ("choice", "begun"),
    [("required", [CALLS]), ({"type": "function", "function": {"name": NAME}}, [CALLS, CALL, *NAME.encode()])],
    ids=["required", "named"],
)
def test_a_wanted_call_is_begun_in_the_prompt(choice: object, begun: list[int]) -> None:
    chat = parse_chat({"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}, "served", 4096)
    assert chat.request.prompt_ids == [*render_prompt(MESSAGES, TOOLS), *begun]
    assert chat.begun == tuple(begun)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert parse(max_completion_tokens=3, max_tokens=9).request.sampling.max_new_tokens == 3
    assert parse(max_tokens=9).request.sampling.max_new_tokens == 9


def test_unknown_fields_are_ignored() -> None:
    assert parse(custom_params={"a": 1}, service_tier="x", user="u").request.room is None


REFUSED = {
    "no messages": ({"messages": None}, "messages must be a list"),
    "empty messages": ({"messages": []}, "messages must be a list"),
    "text for a message": ({"messages": ["hi"]}, "messages must be a list"),
    "role": ({"messages": [{"role": "robot", "content": "x"}]}, "'robot'"),
    "content": ({"messages": [{"role": "user", "content": 7}]}, "content must be text"),
    "lone surrogate": ({"messages": [{"role": "user", "content": "\ud800"}]}, "no prompt form"),
    "n": ({"n": 2}, "n=2"),
    "stop": ({"stop": ["x"]}, "stop=['x']"),
    "penalty": ({"frequency_penalty": 0.5}, "frequency_penalty=0.5"),
    "format": ({"response_format": {"type": "json_object"}}, "response_format="),
    "required of nothing": ({"tool_choice": "required"}, "no tools are offered"),
    "named, not offered": ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "'x', which is not among"),
    "choice": ({"tools": TOOLS, "tool_choice": "maybe"}, "'maybe' is not known"),
    "tools": ({"tools": {"a": 1}}, "tools must be a list"),
    "temperature": ({"temperature": -1}, "temperature must be"),
    "temperature text": ({"temperature": "hot"}, "'hot'"),
    "top_p": ({"top_p": 1.5}, "top_p must be"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens must be"),
    "max_tokens bool": ({"max_tokens": True}, "max_tokens must be"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "from 0 to 20"),
    "room of 64 bits": ({"bootstrap_host": "h", "bootstrap_room": 1 << 63}, "bootstrap_room must be"),
    "rid": ({"rid": "a\nb"}, "rid must be"),
    "stream": ({"stream": "yes"}, "stream must be true or false"),
}


@pytest.mark.parametrize(("body", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_honoured_is_refused_by_name(body: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestFailed) as refusal:
        parse(**body)
    assert refusal.value.status == 400
    assert named in refusal.value.message


def test_a_long_prompt_is_refused_in_sglangs_words() -> None:
    recorded = json.loads((DATA / "streams" / "err_too_long_direct.body").read_bytes())
    # 3066 tokens: BOS, SYSTEM, USER, ASSISTANT and 3062 bytes, in a context of 1024.
    with pytest.raises(RequestFailed) as refusal:
        parse_chat({"messages": [{"role": "user", "content": "x" * 3062}]}, "served", 1024)
    assert refusal.value.message == recorded["message"]
    assert (refusal.value.kind, refusal.value.status) == (recorded["type"], recorded["code"])


def test_a_long_answer_is_refused() -> None:
    assert parse(max_tokens=100 - PROMPT_TOKENS).request.sampling.max_new_tokens == 79
    with pytest.raises(RequestFailed, match="You requested a total of 101 tokens: 21 tokens from the input"):
        parse(max_tokens=100 - PROMPT_TOKENS + 1)
