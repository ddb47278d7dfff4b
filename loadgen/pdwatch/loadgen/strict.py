"""The strict reading: what OpenAI's specification makes of an answer.

It follows the official Python SDK's accumulator (openai 3.57, `ChatCompletionStreamState`): where that fails, this
fails, what it passes over is passed over, and what it garbles is garbled here. Where the SDK lets a value of a wrong
type through to its caller, the specification rules and this fails too. Reasoning is no part of the specification.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .body import Body
from .calls import MOST_CALLS, AssembledCall
from .defects import shown
from .sse import EventLines, read_events
from .texts import joined


@dataclass(frozen=True, slots=True)
class StrictReading:
    """An answer as the strict reader has it at the end, or had it when it failed.

    `error` says what it failed on, None: on nothing. `passed_over` counts the events that it took no notice of: other
    objects than chunks.
    """

    error: str | None
    content: str | None
    refusal: str | None
    tool_calls: tuple[AssembledCall, ...]
    finish_reason: str | None
    usage: Mapping[str, Any] | None
    passed_over: int = 0


class _Refused(Exception):
    """The strict reader goes no further."""


@dataclass(slots=True)
class _Call:
    ids: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)


class _StrictReader:
    def __init__(self) -> None:
        self.is_done = False
        self.chunks = 0
        self.passed_over = 0
        self.content: list[str] | None = None
        self.refusal: list[str] | None = None
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] | None = None
        self.calls: list[_Call] = []
        self._choices = 0

    def stream(self, data: bytes) -> None:
        lines = EventLines()
        for event in read_events(data, drops_mark=False, lines=lines):
            if lines.has_bad_text:
                break
            self.event(event.data or b"")
            if self.is_done:
                break
        else:
            if lines.overflowed:
                raise _Refused("an event is over the size limit")
        if lines.has_bad_text:
            raise _Refused("a line is no UTF-8")
        if not self.chunks:
            raise _Refused("no chunk arrived")

    def event(self, data: bytes) -> None:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise _Refused(f"not UTF-8: {error.reason}") from None
        if text.startswith("[DONE]"):
            self.is_done = True
            return
        payload = _parsed(text)
        if not isinstance(payload, dict):
            raise _Refused(f"a chunk is {shown(payload)}")
        if payload.get("error"):
            raise _Refused(f"the server's error: {shown(payload['error'])}")
        kind = payload.get("object")
        if kind not in ("chat.completion.chunk", "text_completion"):
            self.passed_over += 1
            return
        self.chunks += 1
        for choice in _list(payload, "choices", is_required=True):
            self.choice(choice, kind == "text_completion")
        self.usage = _mapping(payload, "usage")

    def choice(self, choice: Any, is_text: bool) -> None:
        index = _index(choice, "a choice")
        if index > self._choices:
            raise _Refused(f"choice {index} comes where {self._choices} is next")
        self._choices = max(self._choices, index + 1)
        delta = choice if is_text else _mapping(choice, "delta")
        if delta is None:
            raise _Refused("a choice has no delta")
        if index > 0:
            return
        if is_text:
            self.content = _extended(self.content, delta, "text")
        else:
            self.content = _extended(self.content, delta, "content")
            self.refusal = _extended(self.refusal, delta, "refusal")
            for entry in _list(delta, "tool_calls"):
                self.call(entry)
        self.finish_reason = _text(choice, "finish_reason") or self.finish_reason

    def call(self, entry: Any) -> None:
        index = _index(entry, "a call")
        if index > len(self.calls) or index >= MOST_CALLS:
            raise _Refused(f"call {index} comes where {len(self.calls)} is next")
        function = _mapping(entry, "function")
        if function is None:
            raise _Refused("a call has no function")
        if index == len(self.calls):
            self.calls.append(_Call())
        call = self.calls[index]
        for holder, key, into in (
            (entry, "id", call.ids),
            (function, "name", call.names),
            (function, "arguments", call.arguments),
        ):
            into.append(_text(holder, key) or "")

    def whole(self, data: bytes) -> None:
        try:
            payload = _parsed(data.decode())
        except UnicodeDecodeError as error:
            raise _Refused(f"not UTF-8: {error.reason}") from None
        if not isinstance(payload, dict):
            raise _Refused(f"the answer is {shown(payload)}")
        self.usage = _mapping(payload, "usage")
        choices = _list(payload, "choices", is_required=True)
        if not choices:
            raise _Refused("the answer has no choice")
        choice = choices[0]
        _index(choice, "a choice")
        is_text = payload.get("object") == "text_completion"
        message = choice if is_text else _mapping(choice, "message")
        if message is None:
            raise _Refused("a choice has no message")
        self.content = _extended(None, message, "text" if is_text else "content")
        self.refusal = _extended(None, message, "refusal")
        for entry in _list(message, "tool_calls"):
            function = _mapping(entry, "function") if isinstance(entry, dict) else None
            if function is None or len(self.calls) >= MOST_CALLS:
                raise _Refused(f"a call is {shown(entry)}")
            texts = (_text(entry, "id"), _text(function, "name"), _text(function, "arguments"))
            self.calls.append(_Call(*([text or ""] for text in texts)))
        self.finish_reason = _text(choice, "finish_reason") or None

    def sealed(self, error: str | None) -> StrictReading:
        calls = tuple(
            AssembledCall(index, joined(call.ids) or None, joined(call.names), joined(call.arguments))
            for index, call in enumerate(self.calls)
        )
        return StrictReading(
            error=error,
            content=None if self.content is None else joined(self.content),
            refusal=None if self.refusal is None else joined(self.refusal),
            tool_calls=calls,
            finish_reason=None if self.finish_reason is None else shown(self.finish_reason),
            usage=self.usage,
            passed_over=self.passed_over,
        )


def read_strictly(body: Body, *, is_streamed: bool) -> StrictReading:
    """Read a body as a client does that knows whether it asked for a stream, and nothing else."""
    reader = _StrictReader()
    try:
        if is_streamed:
            reader.stream(body.data)
        else:
            reader.whole(body.data)
    except _Refused as refusal:
        return reader.sealed(str(refusal))
    return reader.sealed(None)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _Refused(f"not JSON: {shown(text)}") from None


def _index(holder: Any, what: str) -> int:
    if not isinstance(holder, dict):
        raise _Refused(f"{what} is {shown(holder)}")
    index = holder.get("index")
    if type(index) is not int or index < 0:
        raise _Refused(f"the index of {what} is {shown(index)}")
    return index


def _text(holder: Mapping[str, Any], key: str) -> str | None:
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise _Refused(f"{key} is {shown(value)}")
    return value


def _extended(parts: list[str] | None, holder: Mapping[str, Any], key: str) -> list[str] | None:
    text = _text(holder, key)
    if text is None:
        return parts
    parts = [] if parts is None else parts
    parts.append(text)
    return parts


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    value = holder.get(key)
    if value is not None and not isinstance(value, dict):
        raise _Refused(f"{key} is {shown(value)}")
    return value


def _list(holder: Mapping[str, Any], key: str, *, is_required: bool = False) -> list[Any]:
    value = holder.get(key)
    if value is None and not is_required:
        return []
    if not isinstance(value, list):
        raise _Refused(f"{key} is {shown(value)}")
    return value
