"""From a response's bytes to the answer they spell.

The reading is lenient, as people's SDKs are; every place where the OpenAI specification would read otherwise is in
`defects`. Nothing a server sends makes it raise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from .calls import AssembledCall, CallAssembler
from .defects import DefectList, ProtocolDefect
from .sse import Event, EventStream
from .transcript import Transcript

FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event that held a JSON object, and when the read that completed it returned."""

    seconds: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Assembled:
    """An answer put together. None means that nothing of the kind arrived.

    `first_choice_seconds` is the first chunk with a choice (usually the role alone), `first_visible_seconds` the first
    with text or call output, `last_token_seconds` the last with either or with finish_reason; usage and [DONE] move
    none of them. `output_seconds` has one entry for each chunk with output or finish_reason.
    """

    events: tuple[StreamEvent, ...]
    is_event_stream: bool
    is_done: bool
    response_id: str | None
    model: str | None
    role: str | None
    content: str | None
    reasoning: str | None
    tool_calls: tuple[AssembledCall, ...]
    finish_reason: str | None
    usage: Mapping[str, Any] | None
    errors: tuple[str, ...]
    first_event_seconds: float | None
    first_choice_seconds: float | None
    first_choice_is_output: bool
    first_visible_seconds: float | None
    output_seconds: tuple[float, ...]
    defects: tuple[ProtocolDefect, ...]

    @property
    def last_token_seconds(self) -> float | None:
        """Arrival of the last chunk with output or finish_reason."""
        return self.output_seconds[-1] if self.output_seconds else None

    def usage_count(self, name: str) -> int | None:
        """A count of `usage`, such as completion_tokens; None when it is missing or not a count."""
        value = (self.usage or {}).get(name)
        return value if type(value) is int and value >= 0 else None


def assemble(transcript: Transcript) -> Assembled:
    """Put a transcript's answer together."""
    return assemble_chunks(transcript.chunks, transcript.response_headers)


def assemble_chunks(chunks: Iterable[tuple[float, bytes]], response_headers: Mapping[str, str]) -> Assembled:
    """Put an answer together from body bytes and the times they arrived at."""
    assembler = _Assembler()
    pieces = tuple(chunks)
    media_type = response_headers.get("content-type", "").partition(";")[0].strip().lower()
    opening = next((data for _, data in pieces if data), b"")
    if media_type == "text/event-stream":
        assembler.read_events(pieces)
    else:
        assembler.defects.add("not_event_stream", f"content-type is {media_type!r}")
        if media_type == "application/json" or opening.lstrip().startswith(b"{"):
            assembler.read_whole(pieces)
        else:
            assembler.read_events(pieces)
    return assembler.sealed()


class _Assembler:
    def __init__(self) -> None:
        self.defects = DefectList()
        self._calls = CallAssembler(self.defects)
        self._events: list[StreamEvent] = []
        self._is_event_stream = False
        self._is_done = False
        self._response_id: str | None = None
        self._model: str | None = None
        self._role: str | None = None
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._errors: list[str] = []
        self._first_event_seconds: float | None = None
        self._first_choice_seconds: float | None = None
        self._first_choice_is_output = False
        self._first_visible_seconds: float | None = None
        self._output_seconds: list[float] = []

    def read_events(self, pieces: Iterable[tuple[float, bytes]]) -> None:
        self._is_event_stream = True
        stream = EventStream()
        seconds = 0.0
        for seconds, data in pieces:
            for event in stream.feed(data):
                self._event(seconds, event)
        if stream.overflowed:
            self.defects.add("oversized_event")
        elif (rest := stream.unfinished) is not None:
            self.defects.add("unterminated_event", rest.data.decode(errors="replace"))
            if rest.data.strip() == b"[DONE]" or _parsed(rest.data) is not None:
                self._event(seconds, rest)

    def read_whole(self, pieces: tuple[tuple[float, bytes], ...]) -> None:
        body = b"".join(data for _, data in pieces)
        if body.strip():
            self._event(pieces[-1][0], Event(body))
        self._is_done = True

    def sealed(self) -> Assembled:
        calls = self._calls.sealed()
        content = _joined(self._content)
        defects = self.defects
        if self._finish_reason is None:
            defects.add("no_finish_reason")
        elif self._finish_reason == ("stop" if calls else "tool_calls"):
            defects.add("finish_reason_mismatch", f"{self._finish_reason} with {len(calls)} calls")
        if calls and content and content.strip():
            defects.add("content_and_calls", content)
        if self._usage is None:
            defects.add("no_usage")
        if not self._is_done:
            defects.add("no_done")
        return Assembled(
            events=tuple(self._events),
            is_event_stream=self._is_event_stream,
            is_done=self._is_done,
            response_id=self._response_id,
            model=self._model,
            role=self._role,
            content=content,
            reasoning=_joined(self._reasoning),
            tool_calls=calls,
            finish_reason=self._finish_reason,
            usage=self._usage,
            errors=tuple(self._errors),
            first_event_seconds=self._first_event_seconds,
            first_choice_seconds=self._first_choice_seconds,
            first_choice_is_output=self._first_choice_is_output,
            first_visible_seconds=self._first_visible_seconds,
            output_seconds=tuple(self._output_seconds),
            defects=defects.sealed(),
        )

    def _event(self, seconds: float, event: Event) -> None:
        data = event.data
        if self._is_done and data.strip():
            self.defects.add("late_chunk", data.decode(errors="replace"))
        payload = _parsed(data, self.defects)
        if payload is None:
            self._event_without_json(event)
            return
        has_error = event.type == b"error" or bool(payload.get("error"))
        if has_error:
            self._error(data)
        if self._first_event_seconds is None:
            self._first_event_seconds = seconds
        self._events.append(StreamEvent(seconds, payload))
        if payload.get("id") != self._response_id:
            self._response_id = self._constant(payload, "id", "id_changed", self._response_id)
        if payload.get("model") != self._model:
            self._model = self._constant(payload, "model", "model_changed", self._model)
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = payload.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                self._choice(seconds, choice)
        elif not has_error:
            self.defects.add("choices_null", f"choices is {choices!r:.80}")

    def _event_without_json(self, event: Event) -> None:
        data = event.data.strip()
        if data == b"[DONE]":
            self._is_done = True
        # sglang 0.5 writes some errors as a Python dictionary.
        elif event.type == b"error" or data.startswith(b"{'error'"):
            self._error(data)
        elif data:
            self.defects.add("bad_json_event", data.decode(errors="replace"))

    def _error(self, data: bytes) -> None:
        text = data.decode(errors="replace")[:500]
        self._errors.append(text)
        self.defects.add("in_band_error", text)

    def _choice(self, seconds: float, choice: Any) -> None:
        if not isinstance(choice, dict):
            self.defects.add("bad_delta", f"a choice is {choice!r:.80}")
            return
        if choice.get("index", 0) != 0:
            self.defects.add("unexpected_choice", f"index is {choice['index']!r:.80}")
            return
        if isinstance(choice.get("usage"), dict):
            self.defects.add("usage_in_choice")
            self._usage = choice["usage"]
        had_finished = self._finish_reason is not None
        delta = choice.get("delta", choice.get("message"))
        is_visible = self._delta(delta)
        reason = choice.get("finish_reason")
        if self._first_choice_seconds is None:
            self._first_choice_seconds = seconds
            self._first_choice_is_output = is_visible or reason is not None
        if reason is not None:
            self._finish(reason)
        if is_visible and self._first_visible_seconds is None:
            self._first_visible_seconds = seconds
        if had_finished and (is_visible or reason is not None):
            self.defects.add("late_chunk", f"after finish_reason: {choice!r:.120}")
        if is_visible or reason is not None:
            self._output_seconds.append(seconds)

    def _delta(self, delta: Any) -> bool:
        if not isinstance(delta, dict):
            if delta is not None:
                self.defects.add("bad_delta", f"delta is {delta!r:.80}")
            return False
        if isinstance(delta.get("role"), str):
            self._role = self._role or delta["role"]
        content = self._text(delta, "content", self._content)
        reasoning = self._reasoning_text(delta)
        calls = delta.get("tool_calls")
        return (calls is not None and self._calls.add(calls)) or content or reasoning

    def _reasoning_text(self, delta: Mapping[str, Any]) -> bool:
        one, other = delta.get("reasoning_content"), delta.get("reasoning")
        if not one and not other:
            return False
        if one and other and one != other:
            self.defects.add("reasoning_disagrees")
        return self._text(delta, "reasoning_content" if one else "reasoning", self._reasoning)

    def _text(self, delta: Mapping[str, Any], key: str, into: list[str]) -> bool:
        value = delta.get(key)
        if isinstance(value, str):
            into.append(value)
            return bool(value)
        if value is not None:
            self.defects.add("bad_delta", f"{key} is {value!r:.80}")
        return False

    def _finish(self, reason: Any) -> None:
        if not isinstance(reason, str) or reason not in FINISH_REASONS:
            self.defects.add("unknown_finish_reason", f"{reason!r:.80}")
        if self._finish_reason is None:
            self._finish_reason = reason if isinstance(reason, str) else f"{reason!r:.80}"

    def _constant(self, payload: Mapping[str, Any], key: str, code: str, known: str | None) -> str | None:
        value = payload.get(key)
        if not isinstance(value, str) or not value:
            return known
        if known is not None and value != known:
            self.defects.add(code, f"{known} to {value}")
        return known or value


def _joined(parts: list[str]) -> str | None:
    """The text, with surrogate halves that came in two deltas made whole; None for no part at all."""
    if not parts:
        return None
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _parsed(data: bytes, defects: DefectList | None = None) -> dict[str, Any] | None:
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            payload = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if defects is not None:
            defects.add("loose_json_event", data.decode(errors="replace"))
    return payload if isinstance(payload, dict) else None
