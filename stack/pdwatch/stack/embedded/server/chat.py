"""/v1/chat/completions: the request.

Fields that would change the answer and that the embedded engine does not have are refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..request import Request
from ..template import TemplateError, render_prompt
from ..tokens import VOCABULARY_SIZE
from . import fields
from .choice import read_tool_choice
from .outputs import RequestFailed
from .roles import Rendezvous

MAXIMUM_TOP_LOGPROBS: Final = 20


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat request; `parse_calls` says whether tool calls are looked for in the answer, `begun` are its first
    tokens where the prompt holds them already."""

    request: Request
    rendezvous: Rendezvous | None
    model: str
    parse_calls: bool
    begun: tuple[int, ...]
    include_usage: bool
    return_token_ids: bool


def parse_chat(body: fields.Body, default_model: str, context_length: int) -> ChatRequest:
    """The request of a JSON body. Raises RequestFailed with status 400."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise RequestFailed(400, "Bad Request", "messages must be a list of at least one message object")
    fields.refuse_unsupported(body)
    choice = read_tool_choice(body)
    try:
        prompt_ids = [*render_prompt(messages, choice.tools), *choice.begun]
    except (TemplateError, KeyError, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise fields.refused(f"the messages have no prompt form: {error}") from None
    asked = fields.integer(body, "max_completion_tokens", None, 1, 1 << 31)
    if asked is None:
        asked = fields.integer(body, "max_tokens", None, 1, 1 << 31)
    rendezvous = fields.rendezvous(body)
    wants_logprobs = fields.flag(body, "logprobs")
    options = body.get("stream_options")
    request = Request(
        rid=fields.new_rid(body),
        prompt_ids=prompt_ids,
        sampling=fields.sampling(body, fields.fit_context(len(prompt_ids), asked, context_length), VOCABULARY_SIZE),
        return_logprob=wants_logprobs,
        top_logprobs=(fields.integer(body, "top_logprobs", 0, 0, MAXIMUM_TOP_LOGPROBS) or 0) if wants_logprobs else 0,
        room=None if rendezvous is None else rendezvous.room,
        stream=fields.flag(body, "stream"),
    )
    return ChatRequest(
        request=request,
        rendezvous=rendezvous,
        model=fields.text(body, "model") or default_model,
        parse_calls=bool(choice.tools),
        begun=choice.begun,
        include_usage=fields.flag(options, "include_usage") if isinstance(options, Mapping) else False,
        return_token_ids=fields.flag(body, "return_token_ids"),
    )
