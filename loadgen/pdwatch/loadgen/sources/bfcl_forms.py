"""The leaderboard's schemas and answers in the forms of the OpenAI API.

Its schemas name Python's, Java's and JavaScript's types, and its answers list what else would be right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..task import ExpectedCall

# a type that is not named here is any, which JSON Schema says by saying nothing.
_TYPES: Final = {
    "dict": "object",
    "HashMap": "object",
    "float": "number",
    "double": "number",
    "tuple": "array",
    "ArrayList": "array",
    "Array": "array",
    "String": "string",
    "char": "string",
    "long": "integer",
    "Boolean": "boolean",
    **{name: name for name in ("object", "number", "array", "string", "integer", "boolean", "null")},
}
_KEPT: Final = ("description", "enum", "default", "format", "minimum", "maximum", "minItems", "maxItems")
_LANGUAGES: Final = {"simple_java": "Java", "simple_javascript": "JavaScript"}
_MOST_NAME: Final = 64


class Undetermined(Exception):
    """More than one answer is right."""


def tool(function: Any, slice_name: str) -> dict[str, Any]:
    """The entry of a request's `tools`.

    Java and JavaScript values are asked for as source text, as the leaderboard asks for them. Raises ValueError for a
    function that has no such form.
    """
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    if not isinstance(parameters, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"function is {function!r:.80}; it needs a name and parameters")
    language = _LANGUAGES.get(slice_name)
    schema = _schema(parameters) if language is None else _source_text(parameters, language)
    described = {"name": tool_name(function["name"]), "description": str(function.get("description", ""))}
    return {"type": "function", "function": {**described, "parameters": schema}}


def tool_name(name: str) -> str:
    """A function's name as the API allows it: letters, digits, `_` and `-`, at most 64."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_MOST_NAME]


def expected_calls(
    truth: Sequence[Mapping[str, Mapping[str, Any]]], tools: Sequence[Mapping[str, Any]], question: str
) -> tuple[ExpectedCall, ...]:
    """The one right answer.

    Raises Undetermined where several are right: an argument with alternatives or one that may be left out, a whole
    number where any number fits (5 and 5.0 are two texts), a text that neither the question nor an `enum` spells out.
    """
    schemas = {entry["function"]["name"]: entry["function"]["parameters"] for entry in tools}
    calls = []
    for call in truth:
        for name, arguments in call.items():
            # the arguments as an object, which has itself for its only alternative.
            values = _value([arguments], schemas.get(tool_name(name), {}), question)
            calls.append(ExpectedCall(tool_name(name), values))
    return tuple(calls)


def _value(possible: Any, schema: Mapping[str, Any], question: str) -> Any:
    if not isinstance(possible, list) or len(possible) != 1:
        raise Undetermined
    value = possible[0]
    if isinstance(value, Mapping):
        inner = schema.get("properties", {})
        if schema.get("type") != "object" or not set(schema.get("required", ())) <= set(value) <= set(inner):
            raise Undetermined
        return {field: _value(listed, inner[field], question) for field, listed in value.items()}
    if not _is_sole(value, schema, question):
        raise Undetermined
    return value


def _is_sole(value: Any, schema: Mapping[str, Any], question: str) -> bool:
    """Whether a value fits its schema (some of the leaderboard's do not) and no other text would say the same."""
    wanted = schema.get("type")
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, list):
        return wanted == "array" and all(_is_sole(item, schema.get("items", {}), question) for item in value)
    if isinstance(value, str):
        return wanted in ("string", None) and bool(value) and (value in question or "enum" in schema)
    if isinstance(value, bool):
        return wanted in ("boolean", None)
    if isinstance(value, int):
        return wanted == "integer"
    if isinstance(value, float):
        return wanted in ("number", None) and not value.is_integer()
    return False


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: schema[key] for key in _KEPT if key in schema}
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        kept = {"type": _TYPES[kind], **kept}
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        kept["properties"] = {
            field: _schema(inner) for field, inner in properties.items() if isinstance(inner, Mapping)
        }
        required = schema.get("required")
        if isinstance(required, list):
            kept["required"] = [field for field in required if field in kept["properties"]]
    if isinstance(schema.get("items"), Mapping):
        kept["items"] = _schema(schema["items"])
    return kept


def _source_text(parameters: Mapping[str, Any], language: str) -> dict[str, Any]:
    schema = _schema(parameters)
    for field in schema.get("properties", {}):
        inner = parameters["properties"][field]
        note = f"A {language} value of type {inner.get('type') or 'any'}, as source text."
        schema["properties"][field] = {
            "type": "string",
            "description": f"{inner.get('description', '')} {note}".strip(),
        }
    return schema
