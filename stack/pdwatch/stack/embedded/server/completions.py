"""/v1/chat/completions: the answer, streamed or whole."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from ..parser import AnswerParser, CallArguments, CallStart, ContentDelta, Delta
from ..request import FinishReason, Output
from .chat import ChatRequest, parse_chat
from .fields import describe
from .http import on_disconnect, read_json, respond_json, start_events
from .logprobs import chat_logprobs
from .outputs import OutputStream, RequestFailed
from .stream import DONE, ChatChunks, error_event
from .text import PlainText

if TYPE_CHECKING:
    from ..faults import Fault
    from ..request import TokenLogprob
    from ..service import Service

_log = logging.getLogger(__name__)


class ChatCompletions:
    """ASGI endpoint. `fault` may damage the streaming path, where such bugs live."""

    def __init__(self, service: Service, fault: Fault, model: str, context_length: int) -> None:
        self._service = service
        self._fault = fault
        self._model = model
        self._context_length = context_length
        self._stream_count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        chat = parse_chat(await read_json(receive), self._model, self._context_length)
        stream = self._service.open(chat.request, chat.rendezvous)
        try:
            async with on_disconnect(receive, lambda: self._service.close(stream)):
                if chat.request.stream:
                    await self._stream(chat, stream, send)
                else:
                    await respond_json(send, 200, await _whole(chat, stream))
        finally:
            self._service.close(stream)
            _log.info("%s %s", describe(chat.request), ending(scope, stream))

    async def _stream(self, chat: ChatRequest, stream: OutputStream, send: Send) -> None:
        number, self._stream_count = self._stream_count, self._stream_count + 1
        chunks = ChatChunks(stream.rid, int(stream.created_unix), chat.model)
        answer = _Answer(chat)
        # before the first output nothing is sent, so a request that fails by then gets a status of its own.
        outputs = await stream.next()
        await start_events(send)
        pending = chunks.role()
        finish: FinishReason | None = None
        while finish is None:
            for output in outputs:
                finish = output.finish
                pending += self._chunks(answer, output, chunks)
            if finish is None:
                if pending:
                    await send({"type": "http.response.body", "body": pending, "more_body": True})
                    pending = b""
                try:
                    outputs = await stream.next()
                except RequestFailed as failure:
                    pending = error_event(failure) + DONE
                    break
        if finish is not None and not self._fault.cut_stream(number, stream.largest_batch):
            pending += chunks.finish(answer.finish_reason(finish), finish.matched)
            if chat.include_usage:
                pending += chunks.usage(_usage(stream))
            pending += DONE
        await send({"type": "http.response.body", "body": pending, "more_body": False})

    def _chunks(self, answer: _Answer, output: Output, chunks: ChatChunks) -> bytes:
        logprobs = chat_logprobs(output.logprobs)
        body = b""
        for delta in answer.deltas(output):
            if isinstance(delta, CallArguments):
                fragment = self._fault.stream_fragment(delta.fragment, output.running_batch)
                if not fragment:
                    continue
                body += chunks.call_arguments(delta.index, fragment, logprobs)
            elif isinstance(delta, CallStart):
                body += chunks.call_start(delta.index, new_call_id(), delta.name, logprobs)
            else:
                body += chunks.content(delta.text, logprobs)
            logprobs = None
        return body if logprobs is None else body + chunks.nothing(logprobs)


class _Answer:
    """Deltas of one answer, with calls looked for or not."""

    def __init__(self, chat: ChatRequest) -> None:
        self._parser = AnswerParser() if chat.parse_calls else None
        if self._parser is not None:
            # an open call has nothing to show before the model goes on.
            self._parser.feed(chat.begun)
        self._plain = PlainText(show_special=True)

    def deltas(self, output: Output) -> Iterator[Delta]:
        """What the tokens of one output complete; with the last output, all that was held back."""
        ended = output.finish is not None
        if self._parser is not None:
            yield from self._parser.feed(output.new_token_ids)
            if ended:
                yield from self._parser.finish()
            return
        text = self._plain.feed(output.new_token_ids) + (self._plain.finish() if ended else "")
        if text:
            yield ContentDelta(text)

    def finish_reason(self, finish: FinishReason) -> str:
        """OpenAI's finish_reason: a stop after a call is `tool_calls`."""
        called = self._parser is not None and self._parser.call_count > 0
        return "tool_calls" if called and finish.type == "stop" else finish.type


async def _whole(chat: ChatRequest, stream: OutputStream) -> dict[str, Any]:
    answer = _Answer(chat)
    content = ""
    calls: list[dict[str, Any]] = []
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish: FinishReason | None = None
    while finish is None:
        for output in await stream.next():
            finish = output.finish
            token_ids += output.new_token_ids
            logprobs += output.logprobs or ()
            for delta in answer.deltas(output):
                if isinstance(delta, ContentDelta):
                    content += delta.text
                elif isinstance(delta, CallStart):
                    function = {"name": delta.name, "arguments": ""}
                    calls.append({"id": new_call_id(), "index": delta.index, "type": "function", "function": function})
                else:
                    calls[delta.index]["function"]["arguments"] += delta.fragment
    choice: dict[str, Any] = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": content or (None if calls else ""),
            "reasoning_content": None,
            "tool_calls": calls or None,
        },
        "logprobs": chat_logprobs(logprobs),
        "finish_reason": answer.finish_reason(finish),
        "matched_stop": finish.matched,
    }
    if chat.return_token_ids:
        choice |= {"prompt_token_ids": chat.request.prompt_ids, "token_ids": token_ids}
    return {
        "id": stream.rid,
        "object": "chat.completion",
        "created": int(stream.created_unix),
        "model": chat.model,
        "choices": [choice],
        "usage": _usage(stream),
        "metadata": {"weight_version": "default"},
    }


def _usage(stream: OutputStream) -> dict[str, Any]:
    return {
        "prompt_tokens": stream.prompt_tokens,
        "total_tokens": stream.prompt_tokens + stream.generated_tokens,
        "completion_tokens": stream.generated_tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def new_call_id() -> str:
    """A tool call's id in SGLang's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


def ending(scope: Scope, stream: OutputStream) -> str:
    """How a request ended, for its log line."""
    names = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"]
    seconds = (stream.ended_at or time.perf_counter()) - stream.created
    end = "aborted" if stream.aborted else "finished"
    return f"x_request_id={names[0][:120] if names else '-'} {end} generated={stream.generated_tokens} {seconds:.3f}s"
