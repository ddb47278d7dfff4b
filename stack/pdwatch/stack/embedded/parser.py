"""Streaming parser of answers: token ids in, OpenAI-shaped deltas out.

A character is held back until its last byte has come. What the model was never taught to write (a special token in
the middle of a value, text between calls) is passed on visibly as the token's markup, never dropped and never raised:
the parser must not hide a corrupt answer.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from .tokens import ARGUMENT, CALL, CALLS, END, EOS, is_special, token_text


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer outside any call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call whose name is complete; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of the arguments text of call `index`."""

    index: int
    fragment: str


Delta = ContentDelta | CallStart | CallArguments


class _State(Enum):
    TEXT = auto()
    BETWEEN = auto()
    NAME = auto()
    FIELD = auto()
    VALUE = auto()


class AnswerParser:
    """Parser of one answer; feed it tokens as they come, then finish it once."""

    def __init__(self) -> None:
        self._state = _State.TEXT
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._index = -1
        self._fields = 0

    @property
    def call_count(self) -> int:
        """Calls started so far."""
        return self._index + 1

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Deltas that these tokens complete; neighbouring pieces of one kind come joined."""
        deltas: list[Delta] = []
        for token in token_ids:
            if not is_special(token):
                self._take_text(self._utf8.decode(bytes((token,))), deltas)
            elif token != EOS:
                self._take_text(self._utf8.decode(b"", final=True), deltas)
                self._take_special(token, deltas)
        return _joined(deltas)

    def finish(self) -> list[Delta]:
        """What was still held back: half a character as U+FFFD, the start of a call that was cut."""
        deltas: list[Delta] = []
        self._take_text(self._utf8.decode(b"", final=True), deltas)
        if self._state is _State.NAME:
            self._start_call(deltas)
        elif self._state is _State.FIELD and self._held:
            deltas.append(CallArguments(self._index, self._field_prefix() + json.dumps(self._held, ensure_ascii=False)))
        self._held = ""
        return _joined(deltas)

    def _take_text(self, text: str, deltas: list[Delta]) -> None:
        if not text:
            return
        if self._state in (_State.TEXT, _State.BETWEEN):
            deltas.append(ContentDelta(text))
        elif self._state is _State.NAME:
            self._held += text
        elif self._state is _State.VALUE:
            deltas.append(CallArguments(self._index, text))
        elif text == "=":
            field = json.dumps(self._held, ensure_ascii=False)
            deltas.append(CallArguments(self._index, f"{self._field_prefix()}{field}: "))
            self._held, self._state = "", _State.VALUE
            self._fields += 1
        else:
            self._held += text

    def _take_special(self, token: int, deltas: list[Delta]) -> None:
        state = self._state
        if token == CALLS and state is _State.TEXT:
            self._state = _State.BETWEEN
        elif token == CALL and state is _State.BETWEEN:
            self._index, self._fields, self._state = self._index + 1, 0, _State.NAME
        elif token == ARGUMENT and state in (_State.NAME, _State.VALUE):
            if state is _State.NAME:
                self._start_call(deltas)
            self._state = _State.FIELD
        elif token == END and state in (_State.NAME, _State.VALUE):
            if state is _State.NAME:
                self._start_call(deltas)
            deltas.append(CallArguments(self._index, "}" if self._fields else "{}"))
            self._state = _State.BETWEEN
        else:
            self._take_text(token_text(token), deltas)

    def _start_call(self, deltas: list[Delta]) -> None:
        deltas.append(CallStart(self._index, self._held))
        self._held = ""

    def _field_prefix(self) -> str:
        return ", " if self._fields else "{"


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbouring text pieces, or arguments of one call, made one delta."""
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + delta.text)
        elif isinstance(delta, CallArguments) and isinstance(last, CallArguments) and delta.index == last.index:
            joined[-1] = CallArguments(delta.index, last.fragment + delta.fragment)
        else:
            joined.append(delta)
    return joined
