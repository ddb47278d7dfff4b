"""The JSON bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from ..errors import PlanError

if TYPE_CHECKING:
    from ..plan import Plan

# vLLM's and SGLang's samplers take a 63-bit seed; 31 bits are safe everywhere.
_SEED_SPAN: Final = 2**31


def chat_body(
    plan: Plan,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    max_tokens: int | None,
    *,
    is_streamed: bool,
    extensions: Mapping[str, Any] | None = None,
) -> bytes:
    """A greedy chat completion; without tools, none are mentioned."""
    body: dict[str, Any] = {"model": plan.model, "messages": messages}
    if tools:
        body["tools"] = tools
        body["tool_choice"] = "auto"
    body["temperature"] = 0
    body["seed"] = plan.seed % _SEED_SPAN
    if max_tokens is not None:
        body["max_completion_tokens"] = max_tokens
    return orjson.dumps(body | streaming(is_streamed=is_streamed) | (dict(extensions) if extensions else {}))


def completion_body(
    plan: Plan, prompt: str, max_tokens: int | None, *, is_streamed: bool, extensions: Mapping[str, Any] | None = None
) -> bytes:
    """A greedy completion of plain text."""
    body: dict[str, Any] = {"model": plan.model, "prompt": prompt, "temperature": 0, "seed": plan.seed % _SEED_SPAN}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return orjson.dumps(body | streaming(is_streamed=is_streamed) | (dict(extensions) if extensions else {}))


def streaming(*, is_streamed: bool) -> dict[str, Any]:
    """The fields that ask for a stream with usage, or for none."""
    if is_streamed:
        return {"stream": True, "stream_options": {"include_usage": True}}
    return {"stream": False}


def extensions(plan: Plan, **wanted: Any) -> dict[str, Any]:
    """The wanted fields that are set, of those that SGLang and vLLM know and the OpenAI API does not.

    Raises PlanError when the plan's dialect does not know them.
    """
    present = {name: value for name, value in wanted.items() if value}
    if present and plan.dialect != "sglang":
        raise PlanError(
            f"source.{next(iter(present))} is an extension that the dialect {plan.dialect!r} does not know; "
            "set dialect to 'sglang' (vLLM takes it too) or drop it"
        )
    return present
