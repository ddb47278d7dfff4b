"""Rung 3: is what came back well formed? Strict JSON, the offered schemas, and text without blemish."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdwatch.correctness.errors import StrictJsonError
from pdwatch.correctness.excerpt import excerpt
from pdwatch.correctness.lexicon import blemishes
from pdwatch.correctness.outcome import Finding, Rung, Signature
from pdwatch.correctness.schema import violations
from pdwatch.correctness.strict_json import parse_strict

MAXIMUM_CALLS = 64


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A call as received: `arguments` is None when its text is not a strict JSON object."""

    name: str
    arguments_text: str
    arguments: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Structure:
    """What the structure rung saw. `parses` is False when any call's arguments are not a strict JSON object."""

    calls: tuple[ReceivedCall, ...]
    findings: tuple[Finding, ...]

    @property
    def parses(self) -> bool:
        return all(call.arguments is not None for call in self.calls)


def examine(
    content: str,
    calls: Sequence[tuple[str, str]],
    tools: Sequence[Mapping[str, Any]],
    prompt_text: str = "",
) -> Structure:
    """Judge the form of an answer: `calls` are pairs of name and arguments text, `tools` OpenAI's.

    `prompt_text` is all text of the request; markup that stands there may stand in the answer too.
    """
    findings: list[Finding] = []
    schemas = _parameters_by_name(tools)
    if len(calls) > MAXIMUM_CALLS:
        detail = f"{len(calls)} calls in one answer; only the first {MAXIMUM_CALLS} are examined"
        findings.append(_garbled("too_many_calls", detail))
    findings += _blemished("content", content, prompt_text)
    received = []
    for index, (name, text) in enumerate(calls[:MAXIMUM_CALLS]):
        where = f"call {index}"
        findings += _blemished(f"{where} name", name, prompt_text)
        findings += _blemished(f"{where} arguments", text, prompt_text)
        if name not in schemas:
            findings.append(_unknown_name(where, name, prompt_text))
        arguments, complaint = _arguments(where, text)
        if complaint is not None:
            findings.append(complaint)
        elif "\\u" in text:
            # an escape can hide what the raw text does not show.
            findings += _blemished(f"{where} values", "\n".join(_strings(arguments)), prompt_text)
        received.append(ReceivedCall(name, text, arguments))
        if arguments is not None and name in schemas:
            findings += _against_schema(where, name, schemas[name], arguments)
    return Structure(tuple(received), tuple(findings))


def request_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """All text that the request itself holds, to compare an answer's oddities with."""
    parts = [
        content if isinstance(content := message.get("content"), str) else json.dumps(content, ensure_ascii=False)
        for message in messages
    ]
    return "\n".join([*parts, *(json.dumps(tool, ensure_ascii=False) for tool in tools)])


def _parameters_by_name(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    functions = (tool.get("function", tool) for tool in tools)
    return {str(function.get("name")): function.get("parameters") or {} for function in functions}


def _arguments(where: str, text: str) -> tuple[Mapping[str, Any] | None, Finding | None]:
    # some servers write no text at all for a tool without parameters.
    if text == "":
        return {}, None
    try:
        value = parse_strict(text)
    except StrictJsonError as error:
        return None, _garbled(error.code, f"{where} arguments: {error.detail}", call=where)
    if not isinstance(value, dict):
        return None, _garbled("arguments_not_object", f"{where} arguments are {excerpt(text)}, not an object")
    return value, None


def _strings(value: Any) -> Iterator[str]:
    """All text in a parsed value, keys included; its depth was limited when it was parsed."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _strings(item)


def _blemished(where: str, text: str, prompt_text: str) -> list[Finding]:
    return [
        _garbled(
            blemish.code,
            f"{where}: {excerpt(blemish.text)} at character {blemish.position}",
            where=where,
            position=blemish.position,
        )
        for blemish in blemishes(text, prompt_text)
    ]


def _unknown_name(where: str, name: str, prompt_text: str) -> Finding:
    # a name made of whole words of the prompt is fluent and wrong; anything else is a broken word.
    fluent = bool(name) and set(_words(name)) <= set(_words(prompt_text))
    signature = Signature.WRONG_VALUE if fluent else Signature.GARBLED
    detail = f"{where} names the tool {excerpt(name)!r}, which was not offered"
    return Finding(Rung.STRUCTURE, "unknown_tool", signature, detail)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text)


def _against_schema(where: str, name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[Finding]:
    broken = violations(schema, arguments)
    if not broken:
        return []
    detail = f"{where} {excerpt(name)}: {broken[0]}" + (f" and {len(broken) - 1} more" if len(broken) > 1 else "")
    evidence = {"violations": list(broken)}
    return [Finding(Rung.STRUCTURE, "schema_violation", Signature.WRONG_VALUE, detail, evidence)]


def _garbled(code: str, detail: str, **evidence: Any) -> Finding:
    return Finding(Rung.STRUCTURE, code, Signature.GARBLED, detail, evidence)
