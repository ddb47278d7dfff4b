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
