"""/generate: SGLang's own endpoint, in token ids or text, with teacher forcing."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from ..request import FinishReason, Output, Request
from ..tokens import VOCABULARY_SIZE
from . import fields
from .completions import ending
from .http import on_disconnect, read_json, respond_json, start_events
from .logprobs import GenerateLogprobs
from .outputs import OutputStream, RequestFailed
from .roles import Rendezvous
from .stream import DONE
from .text import PlainText

if TYPE_CHECKING:
    from ..service import Service

_DEFAULT_NEW_TOKENS: Final = 128
_MAXIMUM_TOP_LOGPROBS: Final = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A checked /generate request."""

    request: Request
    rendezvous: Rendezvous | None
    text_in_logprobs: bool


def parse_generate(body: fields.Body, context_length: int) -> GenerateRequest:
    """The request of a JSON body. Raises RequestFailed with status 400."""
    parameters = body.get("sampling_params") or {}
    if not isinstance(parameters, Mapping):
        raise fields.refused("sampling_params must be an object (a batch of requests is not supported)")
    fields.refuse_unsupported(parameters)
    prompt_ids = _prompt(body)
    asked = fields.integer(parameters, "max_new_tokens", None, 0, 1 << 31)
    room = fields.fit_context(len(prompt_ids), asked, context_length)
    rendezvous = fields.rendezvous(body)
    scored = fields.flag(body, "return_logprob")
    start = fields.integer(body, "logprob_start_len", -1, -1, len(prompt_ids) - 1)
    request = Request(
        rid=fields.new_rid(body),
        prompt_ids=prompt_ids,
        sampling=fields.sampling(
            parameters, min(room, _DEFAULT_NEW_TOKENS) if asked is None else asked, VOCABULARY_SIZE
        ),
        return_logprob=scored,
        top_logprobs=(fields.integer(body, "top_logprobs_num", 0, 0, _MAXIMUM_TOP_LOGPROBS) or 0) if scored else 0,
        token_ids_logprob=fields.token_choice(body, "token_ids_logprob", VOCABULARY_SIZE) if scored else (),
        logprob_start=start if scored and start != -1 else None,
        room=None if rendezvous is None else rendezvous.room,
        stream=fields.flag(body, "stream"),
    )
    return GenerateRequest(request, rendezvous, fields.flag(body, "return_text_in_logprobs"))


class Generate:
    """ASGI endpoint."""

    def __init__(self, service: Service, context_length: int) -> None:
        self._service = service
        self._context_length = context_length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors have the shape `{"error": {"message": …}}` here."""
        try:
            generate = parse_generate(await read_json(receive), self._context_length)
            stream = self._service.open(generate.request, generate.rendezvous)
        except RequestFailed as failure:
            await respond_json(send, failure.status, {"error": {"message": failure.message}})
            return
        try:
            async with on_disconnect(receive, lambda: self._service.close(stream)):
                await self._answer(generate, stream, send)
        finally:
            self._service.close(stream)
            _log.info("%s %s", fields.describe(generate.request), ending(scope, stream))

    async def _answer(self, generate: GenerateRequest, stream: OutputStream, send: Send) -> None:
        answer = GeneratedAnswer(generate, stream)
        streaming, started = generate.request.stream, False
        try:
            while not answer.complete:
                for output in await stream.next():
                    answer.add(output)
                if streaming:
                    if not started:
                        await start_events(send)
                        started = True
                    event = b"data: " + orjson.dumps(answer.body()) + b"\n\n"
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except RequestFailed as failure:
            error = {"error": {"message": failure.message}}
            if not started:
                await respond_json(send, failure.status, error)
                return
            event = b"data: " + orjson.dumps(error) + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        if streaming:
            await send({"type": "http.response.body", "body": DONE, "more_body": False})
        else:
            await respond_json(send, 200, answer.body())


class GeneratedAnswer:
    """All that has come so far; SGLang's stream repeats it in every event."""

    def __init__(self, generate: GenerateRequest, stream: OutputStream) -> None:
        request = generate.request
        self._request = request
        self._stream = stream
        self._plain = PlainText(show_special=False)
        self._text = ""
        self._token_ids: list[int] = []
        self._finish: FinishReason | None = None
        shape = {
            "with_top": request.top_logprobs > 0,
            "with_chosen": bool(request.token_ids_logprob),
            "with_text": generate.text_in_logprobs,
        }
        self._input = GenerateLogprobs("input", **shape)
        self._output = GenerateLogprobs("output", **shape)

    @property
    def complete(self) -> bool:
        """True after the last output."""
        return self._finish is not None

    def add(self, output: Output) -> None:
        """Take one output."""
        self._text += self._plain.feed(output.new_token_ids)
        self._token_ids += output.new_token_ids
        for entry in output.logprobs or ():
            self._output.add(entry.token, entry)
        if output.prompt_logprobs is not None and not len(self._input):
            scored = self._request.prompt_ids[-len(output.prompt_logprobs) :] if output.prompt_logprobs else []
            for token, scored_entry in zip(scored, output.prompt_logprobs, strict=True):
                self._input.add(token, scored_entry)
        self._finish = output.finish
        if output.finish is not None:
            self._text += self._plain.finish()

    def body(self) -> dict[str, Any]:
        """One event, or the whole answer."""
        return {"text": self._text, "output_ids": self._token_ids, "meta_info": self._meta_info()}

    def _meta_info(self) -> dict[str, Any]:
        stream = self._stream
        meta: dict[str, Any] = {
            "id": stream.rid,
            "finish_reason": self._finish_reason(),
            "prompt_tokens": stream.prompt_tokens,
            "weight_version": "default",
            "num_retractions": stream.retractions,
        }
        if self._request.return_logprob:
            meta |= self._input.meta | self._output.meta
            meta["output_token_logprobs_length"] = len(self._output)
        meta |= {
            "reasoning_tokens": 0,
            "completion_tokens": len(self._token_ids),
            "cached_tokens": stream.cached_tokens,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
        if self._finish is not None:
            ended = stream.ended_at if stream.ended_at is not None else time.perf_counter()
            meta |= {
                "e2e_latency": ended - stream.created,
                "request_received_ts": stream.created_unix,
                "request_finished_ts": stream.created_unix + ended - stream.created,
                "response_sent_to_client_ts": time.time(),
            }
        return meta

    def _finish_reason(self) -> dict[str, Any] | None:
        finish = self._finish
        if finish is None:
            return None
        if finish.type == "length":
            return {"type": "length", "length": len(self._token_ids)}
        if finish.type == "stop":
            return {"type": "stop", "matched": finish.matched}
        return {"type": "abort", "message": finish.message}


def _prompt(body: fields.Body) -> list[int]:
    input_ids, words = body.get("input_ids"), fields.text(body, "text")
    if (input_ids is None) == (words is None):
        raise fields.refused("Either text or input_ids should be provided, and not both.")
    if words is not None:
        input_ids = list(words.encode())
    prompt_ids = fields.token_ids(input_ids, "input_ids", VOCABULARY_SIZE)
    if not prompt_ids:
        raise fields.refused("the prompt is empty")
    return prompt_ids
