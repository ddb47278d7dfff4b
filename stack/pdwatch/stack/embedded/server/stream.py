"""Chunks of a streamed chat completion, as bytes; all that does not change is put together once per request."""

from __future__ import annotations

from typing import Any, Final

import orjson

from .http import error_object
from .outputs import RequestFailed

DONE: Final = b"data: [DONE]\n\n"

_CALL: Final = b'"type":"function","function":{"name":'


class ChatChunks:
    """Writer of one stream's chunks. `logprobs` is a choice's logprobs object, or None."""

    def __init__(self, completion_id: str, created: int, model: str) -> None:
        head = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._delta = self._head + b'{"index":0,"delta":{"reasoning_content":null'
        self._content = self._delta + b',"content":'
        self._call = self._delta + b',"tool_calls":[{"id":'

    def role(self) -> bytes:
        """The first chunk."""
        return self._delta + b',"role":"assistant","content":""' + _tail(None)

    def content(self, text: str, logprobs: dict[str, Any] | None) -> bytes:
        """Text of the answer."""
        return self._content + orjson.dumps(text) + _tail(logprobs)

    def nothing(self, logprobs: dict[str, Any]) -> bytes:
        """Log-probabilities of tokens that complete no character."""
        return self._delta + _tail(logprobs)

    def call_start(self, index: int, call_id: str, name: str, logprobs: dict[str, Any] | None) -> bytes:
        """A tool call's id and name."""
        call = b'"%s","index":%d,%b%b,"arguments":""}}]' % (call_id.encode(), index, _CALL, orjson.dumps(name))
        return self._call + call + _tail(logprobs)

    def call_arguments(self, index: int, fragment: str, logprobs: dict[str, Any] | None) -> bytes:
        """A further piece of a tool call's arguments text."""
        call = b'null,"index":%d,%bnull,"arguments":%b}}]' % (index, _CALL, orjson.dumps(fragment))
        return self._call + call + _tail(logprobs)

    def finish(self, reason: str, matched_stop: int | None) -> bytes:
        """The chunk that carries finish_reason."""
        matched = b"null" if matched_stop is None else b"%d" % matched_stop
        return self._delta + b'},"logprobs":null,"finish_reason":"%b","matched_stop":%b}]}\n\n' % (
            reason.encode(),
            matched,
        )

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk before [DONE], when stream_options.include_usage is set."""
        return self._head + b'],"usage":' + orjson.dumps(usage) + b"}\n\n"


def error_event(failure: RequestFailed) -> bytes:
    """An error after the head was sent."""
    return b"data: " + orjson.dumps({"error": error_object(failure)}) + b"\n\n"


def _tail(logprobs: dict[str, Any] | None) -> bytes:
    if logprobs is None:
        return b'},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'
    return b'},"logprobs":' + orjson.dumps(logprobs) + b',"finish_reason":null,"matched_stop":null}]}\n\n'
