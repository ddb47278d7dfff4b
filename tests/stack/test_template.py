from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.stack.embedded.template import TemplateError, render_answer, render_prompt
from pdwatch.stack.embedded.tokens import ARGUMENT, ASSISTANT, BOS, CALL, CALLS, END, EOS, SYSTEM, USER

TOOL = {
    "type": "function",
    "function": {
        "name": "book_room",
        "description": "left out of the prompt",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "minLength": 1}, "count": {"type": "integer"}},
            "required": ["city", "count"],
        },
    },
}


def test_a_prompt_is_tools_then_turns_then_the_assistants_mark() -> None:
    prompt = render_prompt([{"role": "user", "content": "Grüße"}], [TOOL])
    line = b'{"name": "book_room", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, '
    line += b'"count": {"type": "integer"}}}}'
    assert prompt == [BOS, SYSTEM, *line, USER, *"Grüße".encode(), ASSISTANT]


def test_a_past_call_and_its_result_are_turns() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    ]
    past = [CALLS, CALL, ord("f"), ARGUMENT, ord("a"), ord("="), ord("1"), END, EOS]
    assert render_prompt(messages) == [BOS, SYSTEM, USER, ord("x"), ASSISTANT, *past, USER, ord("7"), ASSISTANT]


A = [ARGUMENT, *b"a=1"]
PAST_CALLS = {
    "no spaces": (None, ['{"a":1,"b":[1,2]}'], [CALLS, CALL, ord("f"), *A, ARGUMENT, *b"b=[1, 2]", END, EOS]),
    "indented": ("", ['{\n  "a": 1\n}'], [CALLS, CALL, ord("f"), *A, END, EOS]),
    "empty object with a space": (None, ["{ }"], [CALLS, CALL, ord("f"), END, EOS]),
    "text before calls": (
        "hm",
        ['{"a": 1}', '{"a":1}'],
        [*b"hm", CALLS, CALL, ord("f"), *A, END, CALL, ord("f"), *A, END, EOS],
    ),
}


@pytest.mark.parametrize(("content", "arguments", "tokens"), PAST_CALLS.values(), ids=PAST_CALLS.keys())
def test_history_in_another_form_is_rendered(content: str | None, arguments: list[str], tokens: list[int]) -> None:
    calls = [{"function": {"name": "f", "arguments": text}} for text in arguments]
    messages = [{"role": "assistant", "content": content, "tool_calls": calls}]
    assert render_prompt(messages) == [BOS, SYSTEM, ASSISTANT, *tokens, ASSISTANT]


UNUSABLE_CALLS = {
    "cut arguments": {"function": {"name": "f", "arguments": '{"a": 1'}},
    "arguments of a list": {"function": {"name": "f", "arguments": "[1]"}},
    "arguments are no text": {"function": {"name": "f", "arguments": 7}},
    "name is no text": {"function": {"name": 7, "arguments": "{}"}},
    "no function": {},
    "no call": 7,
    "lone surrogate": {"function": {"name": "f", "arguments": '{"a":"\\ud800"}'}},
    "hostile depth": {"function": {"name": "f", "arguments": '{"a":' + "[" * 100_000}},
    "hostile depth, closed": {"function": {"name": "f", "arguments": '{"a":' + "[" * 5000 + "]" * 5000 + "}"}},
    "hostile number": {"function": {"name": "f", "arguments": '{"a":' + "9" * 10_000 + "}"}},
}


@pytest.mark.parametrize("call", UNUSABLE_CALLS.values(), ids=UNUSABLE_CALLS.keys())
def test_history_without_a_form_is_refused_by_its_position(call: Any) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(TemplateError, match=r"messages\[1\]"):
        render_prompt(messages)


@pytest.mark.parametrize(
    ("messages", "tools", "named"),
    [
        pytest.param([{"role": "critic", "content": "x"}], None, "critic", id="unknown role"),
        pytest.param([{"role": "user", "content": 7}], None, r"messages\[0\].content", id="content is a number"),
        pytest.param([{"role": "user", "content": [{"type": "image_url"}]}], None, "content", id="content is an image"),
        pytest.param([], [{"type": "function", "function": {}}], "name", id="tool without a name"),
        pytest.param([], [{"function": {"name": "f", "parameters": {"properties": 3}}}], "'f'", id="no properties"),
        pytest.param([{"role": "assistant", "content": None}], None, "content", id="assistant says nothing"),
    ],
)
def test_what_has_no_form_is_refused_by_name(messages: list, tools: list | None, named: str) -> None:
    with pytest.raises(TemplateError, match=named):
        render_prompt(messages, tools)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("", id="empty"),
        pytest.param('{"a": 1', id="cut"),
        pytest.param('{"a":1}', id="another spacing"),
        pytest.param('{"a": 1}x', id="trailing text"),
        pytest.param('[{"a": 1}]', id="a list"),
        pytest.param('{"a": ' + "[" * 100_000, id="hostile depth"),
    ],
)
def test_arguments_the_parser_never_writes_have_no_tokens(arguments: str) -> None:
    assert render_answer(None, [("f", arguments)]) is None


def test_text_beside_calls_has_no_tokens() -> None:
    assert render_answer("hm", [("f", "{}")]) is None


@given(st.text())
def test_text_is_its_bytes(text: str) -> None:
    assert render_answer(text, []) == [*text.encode(), EOS]
