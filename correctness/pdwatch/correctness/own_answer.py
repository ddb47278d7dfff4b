"""The reference's own answer to a request: what there is to compare with where a model's tokens are not known here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pdwatch.correctness.errors import ReferenceUnavailable
from pdwatch.correctness.excerpt import excerpt
from pdwatch.correctness.score import DECIMALS, TOP_TOKENS, read_logprob
from pdwatch.loadgen import assemble_chunks


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """What the reference answered, run free; `calls` are pairs of name and arguments text.

    `margin_nats` is the smallest distance between its likeliest and its second token, None when the server tells no
    log-probabilities.
    """

    content: str
    calls: tuple[tuple[str, str], ...]
    margin_nats: float | None


@runtime_checkable
class Answerer(Protocol):
    """What answers requests itself: a live reference or a stored one."""

    def own_answer(self, sent_body: str) -> OwnAnswer:
        """The answer to the chat completion with this JSON body. Raises ReferenceFailure."""
        ...


def answer_key(sent_body: str) -> str:
    """Identity of a request, however its answer is transported: SHA-256 over its body, hexadecimal."""
    text = json.dumps(_request(sent_body), sort_keys=True)
    return hashlib.sha256(b"chat completion " + text.encode()).hexdigest()


def question(sent_body: str, *, with_logprobs: bool) -> bytes:
    """The body that asks for the same completion in one piece."""
    asked = {**_request(sent_body), "stream": False}
    if with_logprobs:
        asked |= {"logprobs": True, "top_logprobs": TOP_TOKENS}
    return json.dumps(asked).encode()


def read_own_answer(body: bytes) -> OwnAnswer:
    """The answer from a chat completion. Raises ReferenceUnavailable when it is none: no reference answers so."""
    assembled = assemble_chunks([(0.0, body)], {"content-type": "application/json"}, is_streamed=False)
    if assembled.finish_reason is None or assembled.errors:
        raise _not_in_form(body.decode("utf-8", errors="replace"))
    try:
        margin = _margin_nats(assembled.events[0].payload["choices"][0].get("logprobs"))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise _not_in_form(f"{type(error).__name__}: {error}") from error
    calls = tuple((_whole(call.name), _whole(call.arguments_text)) for call in assembled.tool_calls)
    return OwnAnswer(_whole(assembled.content or ""), calls, margin)


def _request(sent_body: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(sent_body)
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def _margin_nats(logprobs: Mapping[str, Any] | None) -> float | None:
    if logprobs is None or not logprobs["content"]:
        return None
    margins = []
    for entry in logprobs["content"]:
        ranked = sorted((read_logprob(top["logprob"]) for top in entry["top_logprobs"]), reverse=True)
        # a server may tell the emitted token only: then nothing is known of the second
        if len(ranked) < 2:
            return None
        margins.append(round(ranked[0] - ranked[1], DECIMALS))
    return min(margins)


def _not_in_form(detail: str) -> ReferenceUnavailable:
    return ReferenceUnavailable(
        f"the reference's /v1/chat/completions does not answer in OpenAI's form ({excerpt(detail)}): use an SGLang"
        " server"
    )


def _whole(text: str) -> str:
    """Text that can be stored: half a surrogate pair becomes U+FFFD, which is as wrong."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
