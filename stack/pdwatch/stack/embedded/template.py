"""The chat template: OpenAI messages and tools to token ids, and an answer back to the tokens it was.

A prompt is `BOS SYS tools USR text AST`, each tool one JSON line; an answer is plain text or
`CALLS (CALL name (ARG field=json)* END)+`, both ended by EOS. Text is bytes, so rendering an assembled answer
gives exactly the tokens the engine emitted, which is how tokens are recovered behind a router that drops token ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .tokens import ARGUMENT, ASSISTANT, BOS, CALL, CALLS, END, EOS, SYSTEM, USER

_decoder = json.JSONDecoder()


class TemplateError(ValueError):
    """The messages or tools cannot be put into the model's prompt form; the message names the part."""


def render_prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
    """Token ids of the prompt, ready for the model to answer.

    `messages` and `tools` are OpenAI's. Raises TemplateError for a role, a content or a tool that has no form here.
    """
    system = [tool_line(tool) for tool in tools or ()]
    turns: list[int] = []
    for position, message in enumerate(messages):
        role = message.get("role")
        if role in ("system", "developer"):
            system.append(_content(message, position))
        elif role in ("user", "tool"):
            turns += [USER, *_content(message, position).encode()]
        elif role == "assistant":
            turns += [ASSISTANT, *_past_answer(message, position)]
        else:
            raise TemplateError(f"messages[{position}].role is {role!r}: use system, user, assistant or tool")
    return [BOS, SYSTEM, *"\n".join(system).encode(), *turns, ASSISTANT]


def tool_line(tool: Mapping[str, Any]) -> str:
    """One tool as the model reads it: its name and the type of each parameter, descriptions left out."""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"a tool needs a function with a name, got {str(tool)[:80]!r}")
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties", {}) if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        raise TemplateError(f"tool {function['name']!r}: parameters must be a JSON Schema object with properties")
    types = {
        field: {"type": schema.get("type", "string") if isinstance(schema, Mapping) else "string"}
        for field, schema in properties.items()
    }
    return json.dumps(
        {"name": function["name"], "parameters": {"type": "object", "properties": types}}, ensure_ascii=False
    )


def render_answer(content: str | None, tool_calls: Sequence[tuple[str, str]]) -> list[int] | None:
    """Token ids of an answer, EOS included: `tool_calls` are pairs of name and arguments text.

    None when the answer has no exact token form: text and calls together, or arguments that are not the JSON object
    the parser writes.
    """
    if not tool_calls:
        return [*(content or "").encode("utf-8", errors="surrogateescape"), EOS]
    if content:
        return None
    tokens = [CALLS]
    for name, arguments in tool_calls:
        tokens += [CALL, *name.encode("utf-8", errors="surrogateescape")]
        try:
            for field, value in _argument_texts(arguments):
                tokens += [ARGUMENT, *field.encode(), ord("="), *value.encode()]
        except (ValueError, RecursionError):
            return None
        tokens.append(END)
    return [*tokens, EOS]


def _argument_texts(arguments: str) -> Iterator[tuple[str, str]]:
    """Fields of an arguments object with each value's own text, character for character."""
    if not arguments.startswith("{"):
        raise ValueError("not an object")
    if arguments == "{}":
        return
    position = 1
    while True:
        field, position = _decoder.raw_decode(arguments, position)
        if not isinstance(field, str) or not arguments.startswith(": ", position):
            raise ValueError("not a field")
        start = position + 2
        _, position = _decoder.raw_decode(arguments, start)
        yield field, arguments[start:position]
        if arguments[position:] == "}":
            return
        if not arguments.startswith(", ", position):
            raise ValueError("not a separator")
        position += 2


def _content(message: Mapping[str, Any], position: int) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if all(isinstance(part, str) for part in parts):
            return "".join(str(part) for part in parts)
    raise TemplateError(f"messages[{position}].content must be text, got {type(content).__name__}")


def _past_answer(message: Mapping[str, Any], position: int) -> list[int]:
    """An earlier answer as a client gives it back: spaced its own way, or with text before the calls.

    What this model answered comes out as the tokens it was; anything else in the form nearest to it.
    """
    try:
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    except (TypeError, KeyError):
        raise TemplateError(f"messages[{position}].tool_calls must have functions with name and arguments") from None
    content = "" if calls and message.get("content") is None else _content(message, position)
    try:
        exact = render_answer(content, calls)
        if exact is not None:
            return exact
        respaced = render_answer(None, [(name, _spaced(arguments)) for name, arguments in calls])
        if respaced is None:
            raise ValueError("the arguments have no token form")
        return [*content.encode(), *respaced]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise TemplateError(f"messages[{position}] has no token form: {error}") from None


def _spaced(arguments: str) -> str:
    """The arguments object as the parser writes it."""
    fields = json.loads(arguments)
    if not isinstance(fields, dict):
        raise ValueError("arguments must be a JSON object")
    return json.dumps(fields, ensure_ascii=False)
