"""Departures from the OpenAI streaming protocol, as stable codes.

The lenient reading mends each of these as people's SDKs do; the strict reading would have failed or read otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DEFECTS: Final[Mapping[str, str]] = {
    "arguments_null": "a call's arguments are null in a delta; read as nothing",
    "arguments_object": "a call's arguments are JSON instead of text; read as their JSON text",
    "bad_delta": "a choice, delta or call is not an object, or a text in it is not a string; left out",
    "bad_json_event": "an event's data is not JSON; left out",
    "call_id_changed": "a call's id changes without a new name; the first id stands",
    "choices_null": "choices is null or missing in a chunk that is no error; read as none",
    "content_and_calls": "the answer has both text and tool calls (legal, seldom meant)",
    "finish_reason_mismatch": "finish_reason is tool_calls without a call, or stop with one",
    "id_changed": "the response's id changes within the stream",
    "id_duplicate": "two calls have the same id",
    "id_in_function": "a call's id stands inside its function",
    "id_missing": "the first delta of a call has no id",
    "in_band_error": "an error arrived inside the stream",
    "index_missing": "a call delta has no index; read as the call of its id, else the last one",
    "index_reused": "another call begins at a used index; read as a new call",
    "late_chunk": "output arrived after finish_reason, or anything after [DONE]",
    "loose_json_event": "an event's data is JSON only to loose readers (lone surrogates, NaN)",
    "model_changed": "the model's name changes within the stream",
    "name_changed": "a call's name changes after its arguments began; the first name stands",
    "name_missing": "a call has no function name",
    "name_split": "a call's name arrives in pieces; joined",
    "duplicate_name": "a call's whole name arrives again; not appended",
    "no_done": "the stream ends without [DONE]",
    "no_finish_reason": "no finish_reason arrived",
    "no_usage": "no usage arrived",
    "not_event_stream": "the answer is not text/event-stream",
    "oversized_event": "an event is over the size limit; the stream is not read further",
    "reasoning_disagrees": "reasoning and reasoning_content are both there and differ",
    "unexpected_choice": "a choice other than the first arrived; left out",
    "unknown_finish_reason": "finish_reason is none of OpenAI's",
    "unterminated_event": "the last event has no empty line after it; read all the same",
    "usage_in_choice": "usage stands inside a choice",
}


@dataclass(frozen=True, slots=True)
class ProtocolDefect:
    """A kind of departure in one response: its code from DEFECTS, the first occurrence, and how many there were."""

    code: str
    detail: str
    count: int = 1


class DefectList:
    """Collects defects, one entry a code, so that a hostile stream cannot make it long."""

    def __init__(self) -> None:
        self._details: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, code: str, detail: object = "") -> None:
        """Note one occurrence; `code` is one of DEFECTS."""
        if code not in self._details:
            self._details[code] = f"{detail!s:.200}" if detail != "" else DEFECTS[code]
        self._counts[code] = self._counts.get(code, 0) + 1

    def sealed(self) -> tuple[ProtocolDefect, ...]:
        """All of them, in order of first occurrence."""
        return tuple(ProtocolDefect(code, detail, self._counts[code]) for code, detail in self._details.items())
