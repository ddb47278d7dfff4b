"""Tool calls from their deltas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .defects import DefectList


@dataclass(frozen=True, slots=True)
class AssembledCall:
    """A tool call as received: `arguments_text` is the model's text, valid JSON or not."""

    index: int
    id: str | None
    name: str
    arguments_text: str


@dataclass(slots=True)
class _OpenCall:
    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class CallAssembler:
    """Merges `delta.tool_calls` entries leniently and notes where a strict reader would differ."""

    def __init__(self, defects: DefectList) -> None:
        self._defects = defects
        self._calls: list[_OpenCall] = []

    def add(self, entries: Any) -> bool:
        """Take one delta's `tool_calls`; whether it held any output."""
        if not isinstance(entries, list):
            self._defects.add("bad_delta", f"tool_calls is {entries!r:.80}")
            return False
        return any([self._add(entry) for entry in entries])

    def sealed(self) -> tuple[AssembledCall, ...]:
        """The calls in order of arrival; notes what none of their deltas brought."""
        seen: set[str] = set()
        for call in self._calls:
            if not call.name:
                self._defects.add("name_missing", f"call {call.index}")
            if call.id and call.id in seen:
                self._defects.add("id_duplicate", call.id)
            seen.add(call.id)
        return tuple(
            AssembledCall(call.index, call.id or None, call.name, "".join(call.arguments)) for call in self._calls
        )

    def _add(self, entry: Any) -> bool:
        if not isinstance(entry, dict):
            self._defects.add("bad_delta", f"a call is {entry!r:.80}")
            return False
        function = entry.get("function")
        if not isinstance(function, dict):
            if function is not None:
                self._defects.add("bad_delta", f"function is {function!r:.80}")
            function = {}
        call_id = self._text(entry, "id")
        if not call_id and (call_id := self._text(function, "id")):
            self._defects.add("id_in_function", call_id)
        name = self._text(function, "name")
        call = self._find(entry.get("index"), call_id, name)
        self._add_name(call, name)
        arguments = self._arguments(function)
        call.arguments.append(arguments)
        return bool(name or arguments)

    def _find(self, index: Any, call_id: str, name: str) -> _OpenCall:
        if type(index) is int and index >= 0:
            known = next((call for call in reversed(self._calls) if call.index == index), None)
        else:
            self._defects.add("index_missing", f"index is {index!r:.80}")
            known = next((call for call in self._calls if call_id and call.id == call_id), None)
            if known is None and not call_id and self._calls:
                known = self._calls[-1]
            index = len(self._calls)
        if known is not None and call_id and known.id and call_id != known.id:
            if name:
                self._defects.add("index_reused", f"index {index} was call {known.id}, now {call_id}")
                known = None
            else:
                self._defects.add("call_id_changed", f"index {index} was call {known.id}, now {call_id}")
        if known is None:
            known = _OpenCall(index)
            self._calls.append(known)
            if not call_id:
                self._defects.add("id_missing", f"call {index}")
        known.id = known.id or call_id
        return known

    def _add_name(self, call: _OpenCall, name: str) -> None:
        if not name:
            return
        if not call.name:
            call.name = name
        elif name == call.name:
            self._defects.add("duplicate_name", name)
        elif not any(call.arguments):
            self._defects.add("name_split", f"{call.name} + {name}")
            call.name += name
        else:
            self._defects.add("name_changed", f"{call.name} to {name}")

    def _arguments(self, function: Mapping[str, Any]) -> str:
        if "arguments" not in function:
            return ""
        arguments = function["arguments"]
        if isinstance(arguments, str):
            return arguments
        if arguments is None:
            self._defects.add("arguments_null")
            return ""
        self._defects.add("arguments_object", f"arguments is {arguments!r:.80}")
        return json.dumps(arguments, ensure_ascii=False)

    def _text(self, holder: Mapping[str, Any], key: str) -> str:
        value = holder.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        self._defects.add("bad_delta", f"{key} is {value!r:.80}")
        return ""
