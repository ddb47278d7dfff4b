"""The lenient reading: an answer from its events, as people's SDKs take it.

Nothing a server sends makes it raise, and every place where the OpenAI specification would read otherwise is noted.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

from .calls import AssembledCall, CallAssembler
from .defects import DefectList, shown
from .sse import Event
from .texts import NOT_JSON, joined, parse

CHUNK_OBJECTS: Final = ("chat.completion.chunk", "text_completion")
FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_MOST_ERRORS: Final = 8


class LenientReader:
    """Takes events or a whole body, and holds what they spell; `assembly.Assembled` tells what the fields mean."""

    def __init__(self) -> None:
        self.defects = DefectList()
        self.calls = CallAssembler(self.defects)
        self.is_done = False
        self.response_id: str | None = None
        self.model: str | None = None
        self.role: str | None = None
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] | None = None
        self.errors: list[str] = []
        self.first_event_seconds: float | None = None
        self.first_choice_seconds: float | None = None
        self.first_choice_is_output = False
        self.first_content_seconds: float | None = None
        self.first_reasoning_seconds: float | None = None
        self.first_call_seconds: float | None = None
        self.output_seconds: array[float] = array("d")
        self.counted_seconds: array[float] = array("d")
        self.counted_tokens: array[int] = array("q")
        # by place in output_seconds; most servers tell none.
        self.told_counts: dict[int, int] = {}
        self.tool_calls: tuple[AssembledCall, ...] = ()
        self.last_chunk: dict[str, Any] = {}
        self._is_whole = False
        self._has_answer = False
        self._usage_is_last = True

    def event(self, seconds: float, event: Event) -> None:
        """Take a stream's next event."""
        data = event.data
        if data is None or not (bare := data.strip()):
            self.defects.add("empty_event")
            return
        if self.is_done:
            self.defects.add("late_chunk", "after [DONE]: {}", data)
        if bare.startswith(b"[DONE]"):
            self.is_done = True
            if bare != b"[DONE]" or not data.startswith(b"[DONE]"):
                self.defects.add("done_untidy", "{}", data)
            return
        payload, is_loose = parse(data)
        if is_loose:
            self.defects.add("loose_json_event", "{}", data)
        if isinstance(payload, dict):
            self.chunk(seconds, payload, data, is_error=event.type == b"error")
        # sglang 0.5 writes some errors as a Python dictionary.
        elif event.type == b"error" or (payload is NOT_JSON and bare.startswith(b"{'error'")):
            self._error(data)
        else:
            self.defects.add("bad_json_event", "{}", data)

    def whole(self, seconds: float, body: bytes) -> None:
        """Take a body that is one JSON document."""
        self._is_whole = True
        payload, is_loose = parse(body)
        if is_loose:
            self.defects.add("loose_json_event", "{}", body)
        if isinstance(payload, dict):
            self.chunk(seconds, payload, body)
        else:
            self.defects.add("bad_json_event", "{}", body)

    def chunk(self, seconds: float, payload: dict[str, Any], data: bytes, *, is_error: bool = False) -> None:
        """Take one JSON object, `data` being its text."""
        self.last_chunk = payload
        is_error = is_error or bool(payload.get("error"))
        if is_error:
            self._error(data)
        if self.first_event_seconds is None:
            self.first_event_seconds = seconds
        if payload.get("id") != self.response_id:
            self.response_id = self._constant(payload, "id", "id_changed", self.response_id)
        if payload.get("model") != self.model:
            self.model = self._constant(payload, "model", "model_changed", self.model)
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
            self._usage_is_last = True
        else:
            self._usage_is_last = False
            if usage is not None:
                self.defects.add("usage_malformed", "usage is {}", usage)
        choices = payload.get("choices")
        if not isinstance(choices, list):
            if not is_error:
                self.defects.add("choices_null", "choices is {}", choices)
            return
        if not (self._is_whole or is_error or payload.get("object") in CHUNK_OBJECTS):
            self.defects.add("object_unexpected", "object is {}", payload.get("object"))
        self._has_answer = self._has_answer or bool(choices) or not self._is_whole
        is_text = payload.get("object") == "text_completion"
        for choice in choices:
            self._choice(seconds, choice, is_text)
        if choices:
            self._count(seconds, usage, choices[0])

    def seal(self) -> None:
        """Note what the whole answer lacks or contradicts; no event comes after this."""
        defects, reason = self.defects, self.finish_reason
        calls = self.calls.sealed()
        if not self._has_answer:
            defects.add("no_answer")
        if reason is None:
            defects.add("no_finish_reason")
        elif reason == ("stop" if calls else "tool_calls"):
            defects.add("finish_reason_mismatch", "{} with {} calls", reason, len(calls))
        if calls and any(part and not part.isspace() for part in self.content):
            defects.add("content_and_calls", "{}", joined(self.content))
        if self.usage is None:
            defects.add("no_usage")
        elif not self._usage_is_last:
            defects.add("usage_lost")
        self.tool_calls = calls

    def token_counts(self) -> array[int]:
        """Per entry of `output_seconds` the tokens its chunk told, -1 for none told; empty when no chunk told any."""
        counts = array("q", [-1]) * (len(self.output_seconds) if self.told_counts else 0)
        for place, tokens in self.told_counts.items():
            counts[place] = tokens
        return counts

    def _error(self, data: bytes) -> None:
        text = data[:2000].decode(errors="replace")[:500]
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append(text)
        self.defects.add("in_band_error", "{}", text)

    def _choice(self, seconds: float, choice: Any, is_text: bool) -> None:
        if not isinstance(choice, dict):
            self.defects.add("bad_delta", "a choice is {}", choice)
            return
        index = choice.get("index")
        if index != 0 or type(index) is not int:
            if type(index) is int:
                self.defects.add("unexpected_choice", "index is {}", index)
                return
            self.defects.add("choice_index_missing", "index is {}", index)
        had_finished = self.finish_reason is not None
        is_visible = self._text_delta(seconds, choice) if is_text else self._delta(seconds, self._delta_of(choice))
        reason = choice.get("finish_reason")
        if reason == "":
            self.defects.add("finish_reason_empty")
            reason = None
        if self.first_choice_seconds is None:
            self.first_choice_seconds = seconds
            self.first_choice_is_output = is_visible or reason is not None
        if reason is not None:
            self._finish(reason)
        if is_visible or reason is not None:
            if had_finished:
                self.defects.add("late_chunk", "after finish_reason: {}", choice)
            if (tokens := told_tokens(choice)) is not None:
                self.told_counts[len(self.output_seconds)] = tokens
            self.output_seconds.append(seconds)

    def _delta_of(self, choice: Mapping[str, Any]) -> Any:
        delta = choice.get("message" if self._is_whole else "delta")
        if delta is not None:
            return delta
        self.defects.add("delta_missing")
        return choice.get("message")

    def _delta(self, seconds: float, delta: Any) -> bool:
        if not isinstance(delta, dict):
            if delta is not None:
                self.defects.add("bad_delta", "delta is {}", delta)
            return False
        if self.role is None and isinstance(role := delta.get("role"), str):
            self.role = joined([role])
        has_content = self._text(delta, "content", self.content)
        if delta.get("refusal") is not None:
            has_content = self._text(delta, "refusal", self.refusal) or has_content
        has_reasoning = self._reasoning(delta)
        has_calls = False
        if (calls := delta.get("tool_calls")) is not None:
            has_calls = self.calls.add(calls, is_whole=self._is_whole)
        if (function := delta.get("function_call")) is not None:
            has_calls = self.calls.add_legacy(function) or has_calls
        if has_content and self.first_content_seconds is None:
            self.first_content_seconds = seconds
        if has_reasoning and self.first_reasoning_seconds is None:
            self.first_reasoning_seconds = seconds
        if has_calls and self.first_call_seconds is None:
            self.first_call_seconds = seconds
        return has_content or has_reasoning or has_calls

    def _text_delta(self, seconds: float, choice: Mapping[str, Any]) -> bool:
        """A choice of /v1/completions, whose text is not in a delta."""
        has_text = self._text(choice, "text", self.content)
        if has_text and self.first_content_seconds is None:
            self.first_content_seconds = seconds
        return has_text

    def _reasoning(self, delta: Mapping[str, Any]) -> bool:
        one, other = delta.get("reasoning_content"), delta.get("reasoning")
        if not one and not other:
            return "reasoning_details" in delta and self._reasoning_details(delta["reasoning_details"])
        if one and other and one != other:
            self.defects.add("reasoning_disagrees")
        return self._text(delta, "reasoning_content" if one else "reasoning", self.reasoning)

    def _reasoning_details(self, details: Any) -> bool:
        """OpenRouter's form, which stands beside the plain one or alone."""
        texts = [item.get("text") for item in details if isinstance(item, dict)] if isinstance(details, list) else []
        parts = [text for text in texts if isinstance(text, str) and text]
        self.reasoning += parts
        return bool(parts)

    def _text(self, holder: Mapping[str, Any], key: str, into: list[str]) -> bool:
        value = holder.get(key)
        if isinstance(value, str):
            into.append(value)
            return bool(value)
        if value is not None:
            self.defects.add("bad_delta", "{} is {}", key, value)
        return False

    def _finish(self, reason: Any) -> None:
        if not isinstance(reason, str) or reason not in FINISH_REASONS:
            self.defects.add("unknown_finish_reason", "{}", reason)
        if self.finish_reason is None:
            self.finish_reason = shown(reason)

    def _count(self, seconds: float, usage: Any, choice: Any) -> None:
        """Tokens so far, where a chunk with a choice tells them."""
        if isinstance(choice, dict) and "usage" in choice and isinstance(choice["usage"], dict):
            self.defects.add("usage_in_choice")
            self.usage = usage = choice["usage"]
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if type(tokens) is int and 0 <= tokens < 2**63:
            self.counted_seconds.append(seconds)
            self.counted_tokens.append(tokens)

    def _constant(self, payload: Mapping[str, Any], key: str, code: str, known: str | None) -> str | None:
        value = payload.get(key)
        if not isinstance(value, str) or not value:
            return known
        if known is not None and value != known:
            self.defects.add(code, "{} to {}", known, value)
        return known or joined([value])


def told_tokens(choice: Mapping[str, Any]) -> int | None:
    """How many tokens a chunk says that it brings; None where it says nothing."""
    if "token_ids" in choice and isinstance(ids := choice["token_ids"], list):
        return len(ids)
    delta = choice.get("delta")
    if isinstance(delta, dict) and "token_ids" in delta and isinstance(ids := delta["token_ids"], list):
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict) and isinstance(parts := logprobs.get("content"), list):
        return len(parts)
    return None
