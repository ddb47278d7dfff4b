"""/v1/chat/completions: the request.

`tool_choice` auto and none are honoured. `required` and a named function need constrained decoding, which the
embedded engine does not have, so they are refused, as are the other fields that would change the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..request import Request
from ..template import TemplateError, render_prompt
from ..tokens import VOCABULARY_SIZE
from . import fields
from .outputs import RequestFailed
from .roles import Rendezvous

MAXIMUM_TOP_LOGPROBS: Final = 20


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat request; `parse_calls` says whether tool calls are looked for in the answer."""

    request: Request
    rendezvous: Rendezvous | None
    model: str
    parse_calls: bool
    include_usage: bool
    return_token_ids: bool


def parse_chat(body: fields.Body, default_model: str, context_length: int) -> ChatRequest:
    """The request of a JSON body. Raises RequestFailed with status 400."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise RequestFailed(400, "Bad Request", "messages must be a list of at least one message object")
    fields.refuse_unsupported(body)
    tools = _offered_tools(body)
    try:
        prompt_ids = render_prompt(messages, tools)
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
        parse_calls=bool(tools),
        include_usage=fields.flag(options, "include_usage") if isinstance(options, Mapping) else False,
        return_token_ids=fields.flag(body, "return_token_ids"),
    )


def _offered_tools(body: fields.Body) -> Sequence[Mapping[str, Any]] | None:
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        raise fields.refused("tools must be a list of tool objects")
    choice = body.get("tool_choice")
    if choice in (None, "auto"):
        return tools or None
    if choice == "none":
        return None
    raise fields.refused(
        f"tool_choice {str(choice)[:80]!r} needs constrained decoding, which this worker does not have: "
        "use 'auto' or 'none'"
    )
