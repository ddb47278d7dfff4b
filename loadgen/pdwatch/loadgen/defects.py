"""Departures from the OpenAI streaming protocol, as stable codes.

The lenient reading mends each of these as people's SDKs do; the strict reading (`strict.py`) fails on them, drops what
they stand in, or reads something else. Where both read the same, the code says so.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_SHOWN_CHARACTERS: Final = 200

DEFECTS: Final[Mapping[str, str]] = {
    "arguments_doubled": "a call's arguments are two JSON documents in a row; kept as they came; strict: the same",
    "arguments_null": "a call's arguments are null in a delta; read as nothing; strict: the same",
    "arguments_object": "a call's arguments are JSON instead of text; read as their JSON text; strict: fails",
    "bad_delta": "a choice, delta or call is not an object, or a text in it is not a string; left out; strict: fails",
    "bad_json_event": "an event's data is no JSON object; left out; strict: fails",
    "bad_text_line": "a comment or another line without data is no UTF-8; ignored; strict: fails",
    "byte_order_mark": "the stream begins with a byte order mark; skipped; strict: loses the first line",
    "call_id_changed": "a call's id changes without a new name; the first id stands; strict: joins them",
    "call_id_repeated": "a call's id arrives again; not appended; strict: joins them",
    "choice_index_missing": "a choice has no number as its index; read as the first choice; strict: fails",
    "choices_null": "choices is null or no list in a chunk that is no error; read as none; strict: fails",
    "content_and_calls": "the answer has both text and tool calls (legal, seldom meant); strict: the same",
    "delta_missing": "a choice has no delta (or a whole answer's no message); read as its message or nothing; "
    "strict: fails",
    "done_untidy": "[DONE] has something before or after it; read as [DONE]; strict: fails on what stands before it",
    "duplicate_name": "a call's whole name arrives again; not appended; strict: joins them",
    "empty_event": "an event has no data; ignored; strict: fails",
    "finish_reason_empty": "finish_reason is an empty text; read as null; strict: the same",
    "finish_reason_mismatch": "finish_reason is tool_calls without a call, or stop with one; strict: the same",
    "function_call_legacy": "a call arrives as the deprecated function_call; read as a call; strict: no tool call",
    "function_missing": "a call delta has no function; read as nothing; strict: fails",
    "id_changed": "the response's id changes within the stream; strict: the same",
    "id_duplicate": "two calls have the same id; strict: the same",
    "id_in_function": "a call's id stands inside its function; read; strict: no id",
    "id_missing": "the first delta of a call has no id; strict: the same",
    "in_band_error": "an error arrived inside the response; kept; strict: fails",
    "index_gap": "a call's index is not the next free one; read as a new call; strict: fails",
    "index_missing": "a call delta has no index; read as the call of its id, else the last one; strict: fails",
    "index_reused": "another call begins at a used index; read as a new call; strict: joins the two",
    "late_chunk": "output arrived after finish_reason, or anything after [DONE]; read; strict: nothing after [DONE]",
    "loose_json_event": "an event's data is JSON only to loose readers (lone surrogates, NaN); strict: may fail",
    "model_changed": "the model's name changes within the stream; strict: the same",
    "name_changed": "a call's name changes after its arguments began; the first name stands; strict: joins them",
    "name_missing": "a call has no function name; strict: the same",
    "name_split": "a call's name arrives in pieces; joined; strict: the same",
    "no_answer": "no chunk arrived, or a whole answer has no choice; strict: fails",
    "no_done": "the stream ends without [DONE]; strict: the same",
    "no_finish_reason": "no finish_reason arrived; strict: the same",
    "no_usage": "no usage arrived; strict: the same",
    "not_event_stream": "the answer to a streamed request is not text/event-stream; read as what it is; strict: "
    "nothing where it is no event stream",
    "not_json": "the answer to a request without stream is not application/json; read as what it is; strict: "
    "fails where it is no JSON",
    "object_unexpected": "a chunk's object is not chat.completion.chunk; read; strict: left out",
    "oversized_event": "an event is over the size limit; the stream is not read further; strict: fails",
    "reasoning_disagrees": "reasoning and reasoning_content differ; the latter is read; strict: the same",
    "too_many_calls": "more tool calls than anyone makes; the rest is left out; strict: fails",
    "unexpected_choice": "a choice other than the first arrived; left out; strict: fails where one is skipped",
    "unknown_finish_reason": "finish_reason is none of OpenAI's; read; strict: fails where it is no text",
    "unterminated_event": "the last event has no empty line after it; read; strict: lost",
    "usage_in_choice": "usage stands inside a choice; read; strict: not seen",
    "usage_lost": "a chunk without usage follows the last one with usage; the usage stands; strict: lost",
    "usage_malformed": "usage is no object; left out; strict: fails",
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
        self.total = 0
        self._details: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, code: str, text: str = "", *values: object) -> None:
        """Note one occurrence. `text` takes `values` in its braces, only for the first occurrence of a code."""
        self.total += 1
        if code in self._counts:
            self._counts[code] += 1
            return
        self._counts[code] = 1
        detail = text.format(*map(shown, values)) if text else DEFECTS[code]
        self._details[code] = detail[:_SHOWN_CHARACTERS]

    def sealed(self) -> tuple[ProtocolDefect, ...]:
        """All of them, in order of first occurrence."""
        return tuple(ProtocolDefect(code, detail, self._counts[code]) for code, detail in self._details.items())


_REPR: Final = reprlib.Repr()
_REPR.maxlevel = 4
_REPR.maxstring = _REPR.maxother = 80


def shown(value: Any) -> str:
    """A value as bounded text that every encoder takes, however large or deep it is."""
    if isinstance(value, bytes):
        return value[:_SHOWN_CHARACTERS].decode(errors="replace")
    text = value if isinstance(value, str) else _REPR.repr(value)
    return text[:_SHOWN_CHARACTERS].encode("utf-8", "replace").decode()
