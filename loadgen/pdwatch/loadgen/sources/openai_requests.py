"""Chat requests out of a user's own JSONL file."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson

from ..task import Task
from ..words import nonce
from .chat import streaming
from .config import OpenaiRequestsSource
from .rows import Deck, open_lines
from .work import CHAT_PATH, Work

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..plan import Plan

# the label that evaluations put beside a request: no server takes it.
_LABEL: Final = "should_call_tool"
_LIMITS: Final = ("max_completion_tokens", "max_tokens")


class OpenaiRequests:
    """One request a line, sent as it stands but for the model, the stream and what the configuration sets."""

    def __init__(self, plan: Plan, config: OpenaiRequestsSource) -> None:
        self._plan = plan
        self._config = config
        self._rows = open_lines(config.path, _accept)
        self._deck = Deck(len(self._rows), config.order, plan.seed)

    def work(self, number: int, arm: str) -> Work:
        seed, config = self._plan.seed, self._config
        index = self._deck.index(number)
        body = dict(_request(self._rows.value(index)))
        provenance: dict[str, str | int] = {
            "source": "openai_requests",
            "family": "openai_requests",
            "file": config.path.name,
            "row": self._rows.number(index),
            "seed": seed,
        }
        label = body.pop(_LABEL, None)
        if isinstance(label, bool):
            provenance["expects"] = "call" if label else "no_call"
        if not config.keeps_model or not body.get("model"):
            body["model"] = self._plan.model
        if config.max_tokens is not None:
            limit = next((name for name in _LIMITS if name in body), _LIMITS[0])
            body = {name: value for name, value in body.items() if name not in _LIMITS} | {limit: config.max_tokens}
        if config.stream == "share":
            is_streamed = Random(f"{seed}/mix/{number}").random() < config.streamed_share
            body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
            body |= streaming(is_streamed=is_streamed)
        is_streamed = body.get("stream") is True
        code = ""
        if config.plants_nonce:
            code = nonce(seed, arm, number)
            body["messages"] = _with_code(body["messages"], code)
        task = Task(
            task_id=f"{seed}-{number}-{arm}",
            family="openai_requests",
            seed=seed,
            number=number,
            nonce=code,
            messages=tuple(body["messages"]),
            tools=tuple(body.get("tools") or ()),
            expected_calls=(),
            expected_text=None,
            planted=(code,) if code else (),
        )
        promises_usage = not is_streamed or (body.get("stream_options") or {}).get("include_usage") is True
        return Work(orjson.dumps(body), task, is_streamed, promises_usage, CHAT_PATH, provenance)

    def follow_up(self, work: Work, answer: Assembled) -> Work | None:
        del work, answer
        return None


def _accept(value: Any) -> bool:
    body = _request(value)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("has no messages; only chat requests can be sent")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"messages[{position}] is {message!r:.80}; it needs a role")
    tools = body.get("tools")
    if not isinstance(tools, list | None):
        raise ValueError(f"tools is {tools!r:.80}; give a list or leave it out")
    for position, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"tools[{position}] is {tool!r:.80}; it needs a function with a name")
    if not isinstance(body.get("stream"), bool | None):
        raise ValueError(f"stream is {body['stream']!r:.80}; give true or false")
    if not isinstance(body.get("stream_options"), Mapping | None):
        raise ValueError(f"stream_options is {body['stream_options']!r:.80}; give an object or leave it out")
    return True


def _request(value: Any) -> Mapping[str, Any]:
    """The request that a line holds, by itself or as an OpenAI batch's `body`."""
    if not isinstance(value, Mapping):
        raise ValueError(f"is {value!r:.80}; each line must be one JSON object")
    if "messages" in value or not isinstance(value.get("body"), Mapping):
        return value
    url = value.get("url", CHAT_PATH)
    if url != CHAT_PATH:
        raise ValueError(f"goes to url {url!r:.80}; only {CHAT_PATH} can be sent")
    body: Mapping[str, Any] = value["body"]
    return body


def _with_code(messages: list[Any], code: str) -> list[Any]:
    """The messages with the code at the end of the last question."""
    sentence = f"The code of this request is {code}."
    asked = [position for position, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        return [*messages, {"role": "user", "content": sentence}]
    last = messages[asked[-1]]
    content = last.get("content")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": sentence}]
    else:
        content = f"{content or ''}\n{sentence}"
    return [*messages[: asked[-1]], {**last, "content": content}, *messages[asked[-1] + 1 :]]
