"""Tool calls from their deltas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .defects import DefectList
from .texts import dump, joined

MOST_CALLS: Final = 1024


@dataclass(frozen=True, slots=True)
class AssembledCall:
    """A tool call as received: `arguments_text` is the model's text, valid JSON or not."""

    index: int
    id: str | None
    name: str
    arguments_text: str


@dataclass(slots=True)
class OpenCall:
    """A call whose deltas still arrive; `arguments` are their pieces."""

    index: int
    id: str = ""
    arguments: list[str] = field(default_factory=list)
    has_arguments: bool = False
    # pieces, since a hostile server may send a name in a million of them.
    names: list[str] = field(default_factory=list)
    name_length: int = 0

    def sealed(self) -> AssembledCall:
        """The call as it is now."""
        return AssembledCall(self.index, joined([self.id]) or None, joined(self.names), joined(self.arguments))


class CallAssembler:
    """Merges `delta.tool_calls` entries leniently and notes where a strict reader would differ."""

    def __init__(self, defects: DefectList) -> None:
        self._defects = defects
        self._calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}
        self._by_id: dict[str, OpenCall] = {}

    def add(self, entries: Any, *, is_whole: bool = False) -> bool:
        """Take one delta's `tool_calls`, or a message's whole ones; whether there was any output in them."""
        if not isinstance(entries, list):
            self._defects.add("bad_delta", "tool_calls is {}", entries)
            return False
        has_output = False
        for entry in entries:
            has_output = self._add(entry, is_whole) or has_output
        return has_output

    def add_legacy(self, function: Any) -> bool:
        """Take one delta's `function_call`, which OpenAI had before tools; whether there was any output in it."""
        self._defects.add("function_call_legacy")
        if not isinstance(function, dict):
            self._defects.add("bad_delta", "function_call is {}", function)
            return False
        call = self._by_index.get(-1) or self._open(-1)
        return call is not None and self._add_function(call, function)

    def at(self, index: int) -> OpenCall | None:
        """The call that a delta with this index goes to."""
        return self._by_index.get(index)

    def sealed(self) -> tuple[AssembledCall, ...]:
        """The calls in order of arrival; notes what none of their deltas brought."""
        calls = tuple(call.sealed() for call in self._calls)
        seen: set[str] = set()
        for call in calls:
            if not call.name:
                self._defects.add("name_missing", "call {}", call.index)
            if call.id and call.id in seen:
                self._defects.add("id_duplicate", "{}", call.id)
            seen.add(call.id or "")
            if _is_doubled(call.arguments_text):
                self._defects.add("arguments_doubled", "{}", call.arguments_text)
        return calls

    def _add(self, entry: Any, is_whole: bool) -> bool:
        if not isinstance(entry, dict):
            self._defects.add("bad_delta", "a call is {}", entry)
            return False
        function = entry.get("function")
        if not isinstance(function, dict):
            if function is not None:
                self._defects.add("bad_delta", "function is {}", function)
            else:
                self._defects.add("function_missing")
            function = {}
        call_id = self._text(entry, "id")
        if not call_id and (call_id := self._text(function, "id")):
            self._defects.add("id_in_function", "{}", call_id)
        call = self._open(len(self._calls), call_id) if is_whole else self._find(entry, call_id, function)
        return call is not None and self._add_function(call, function)

    def _find(self, entry: Mapping[str, Any], call_id: str, function: Mapping[str, Any]) -> OpenCall | None:
        index = entry.get("index")
        if type(index) is int and index >= 0:
            known = self._by_index.get(index)
            if known is None and index != len(self._calls):
                self._defects.add("index_gap", "index is {} after {} calls", index, len(self._calls))
        else:
            self._defects.add("index_missing", "index is {}", index)
            known = self._by_id.get(call_id) if call_id else (self._calls[-1] if self._calls else None)
            index = len(self._calls)
        if known is not None and call_id and known.id:
            if call_id == known.id:
                self._defects.add("call_id_repeated", "{}", call_id)
            elif function.get("name"):
                self._defects.add("index_reused", "index {} was call {}, now {}", index, known.id, call_id)
                known = None
            else:
                self._defects.add("call_id_changed", "index {} was call {}, now {}", index, known.id, call_id)
        if known is None:
            return self._open(index, call_id)
        if call_id and not known.id:
            known.id = call_id
            self._by_id.setdefault(call_id, known)
        return known

    def _open(self, index: int, call_id: str = "") -> OpenCall | None:
        if len(self._calls) >= MOST_CALLS:
            self._defects.add("too_many_calls")
            return None
        call = OpenCall(index, call_id)
        self._calls.append(call)
        self._by_index[index] = call
        if call_id:
            self._by_id.setdefault(call_id, call)
        elif index >= 0:
            self._defects.add("id_missing", "call {}", index)
        return call

    def _add_function(self, call: OpenCall, function: Mapping[str, Any]) -> bool:
        name = self._text(function, "name")
        if name:
            self._add_name(call, name)
        arguments = self._arguments(function)
        call.arguments.append(arguments)
        call.has_arguments = call.has_arguments or bool(arguments)
        return bool(name or arguments)

    def _add_name(self, call: OpenCall, name: str) -> None:
        if not call.names:
            call.names, call.name_length = [name], len(name)
        elif len(name) == call.name_length and name == "".join(call.names):
            self._defects.add("duplicate_name", "{}", name)
        elif not call.has_arguments:
            self._defects.add("name_split", "{} + {}", call.names[0], name)
            call.names.append(name)
            call.name_length += len(name)
        else:
            self._defects.add("name_changed", "{} to {}", call.names[0], name)

    def _arguments(self, function: Mapping[str, Any]) -> str:
        if "arguments" not in function:
            return ""
        arguments = function["arguments"]
        if isinstance(arguments, str):
            return arguments
        if arguments is None:
            self._defects.add("arguments_null")
            return ""
        self._defects.add("arguments_object", "arguments is {}", arguments)
        return dump(arguments)

    def _text(self, holder: Mapping[str, Any], key: str) -> str:
        value = holder.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        self._defects.add("bad_delta", "{} is {}", key, value)
        return ""


def _is_doubled(text: str) -> bool:
    """Whether the text is one JSON object and then another: a delta's arguments came twice."""
    if "}{" not in text:
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(text)
        json.loads(text[end:])
    except (ValueError, RecursionError):
        return False
    return True
