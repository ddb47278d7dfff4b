"""Fields of request bodies, checked one by one; the message of a refusal names the field and its value."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from ..frames import MAXIMUM_ROOM
from ..request import Request, SamplingParameters
from .outputs import RequestFailed
from .roles import Rendezvous

Body = Mapping[str, Any]

_RID: Final = re.compile(r"[!-~]{1,200}")
_SEEDS: Final = (-(1 << 63), (1 << 63) - 1)

# fields SGLang acts on and this worker does not, with the values that ask for nothing.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "stop": ([], ""),
    "stop_regex": ([], ""),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "top_k": (-1, 0, 1 << 30),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "lora_path": (),
    "continue_final_message": (False,),
    "return_hidden_states": (False,),
}


def refused(message: str) -> RequestFailed:
    """A 400 as SGLang answers values it cannot serve."""
    return RequestFailed(400, "BadRequestError", message)


def refuse_unsupported(body: Body) -> None:
    """Raise for a field that would change the answer and cannot be honoured; other unknown fields are ignored."""
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise refused(f"{name}={str(value)[:80]} is not supported by this worker: leave it out")


def integer(body: Body, name: str, default: int | None, low: int, high: int) -> int | None:
    """An integer field between `low` and `high`, `default` when absent or null."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise refused(f"{name} must be an integer from {low} to {high}, got {str(value)[:80]!r}")
    return value


def number(body: Body, name: str, default: float, low: float, high: float) -> float:
    """A number field between `low` and `high`."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise refused(f"{name} must be a number from {low:g} to {high:g}, got {str(value)[:80]!r}")
    return float(value)


def flag(body: Body, name: str) -> bool:
    """A boolean field, False when absent."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise refused(f"{name} must be true or false, got {str(value)[:80]!r}")


def text(body: Body, name: str) -> str | None:
    """A text field."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise refused(f"{name} must be text, got {str(value)[:80]!r}")


def token_ids(value: Any, name: str, vocabulary: int) -> list[int]:
    """A list of token ids, of any length."""
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < vocabulary for token in value):
        raise refused(f"{name} must be a list of token ids from 0 to {vocabulary - 1}")
    return value


def token_choice(body: Body, name: str, vocabulary: int) -> tuple[int, ...]:
    """A field that picks tokens of the vocabulary, none when absent; no longer than the vocabulary."""
    chosen = token_ids(body.get(name) or [], name, vocabulary)
    if len(chosen) > vocabulary:
        raise refused(f"{name} names {len(chosen)} tokens: at most {vocabulary}, as many as the vocabulary has")
    return tuple(chosen)


def sampling(body: Body, max_new_tokens: int, vocabulary: int) -> SamplingParameters:
    """Sampling parameters under the names that chat and /generate share; temperature defaults to SGLang's 1."""
    seed = integer(body, "seed", None, *_SEEDS)
    return SamplingParameters(
        max_new_tokens=max_new_tokens,
        temperature=number(body, "temperature", 1.0, 0.0, 100.0),
        top_p=number(body, "top_p", 1.0, 0.0, 1.0),
        # /generate has the seed under this name in SGLang.
        seed=integer(body, "sampling_seed", seed, *_SEEDS),
        ignore_eos=flag(body, "ignore_eos"),
        stop_token_ids=token_choice(body, "stop_token_ids", vocabulary),
    )


def rendezvous(body: Body) -> Rendezvous | None:
    """The fields a PD router adds; None when it added none."""
    room = integer(body, "bootstrap_room", None, 0, MAXIMUM_ROOM)
    host = text(body, "bootstrap_host")
    if room is None or host is None:
        return None
    return Rendezvous(host, integer(body, "bootstrap_port", None, 1, 65535) or 8998, room)


def new_rid(body: Body) -> str:
    """The client's request id, or a fresh one; it goes into log lines, so it must be one printable word."""
    rid = text(body, "rid")
    if rid and not _RID.fullmatch(rid):
        raise refused(f"rid must be 1 to 200 printable ASCII characters without spaces, got {rid[:80]!r}")
    return rid or uuid.uuid4().hex


def fit_context(prompt_tokens: int, asked: int | None, context_length: int) -> int:
    """Tokens to generate at most: what was asked, or all the context has room for.

    Raises RequestFailed with SGLang's messages when the prompt, or prompt and answer, do not fit.
    """
    if prompt_tokens >= context_length:
        raise refused(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context_length} tokens)."
        )
    room = context_length - prompt_tokens
    if asked is not None and asked > room:
        raise refused(
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. You "
            f"requested a total of {prompt_tokens + asked} tokens: {prompt_tokens} tokens from the input messages and "
            f"{asked} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            f"completion to fit within the limit."
        )
    return room if asked is None else asked


def describe(request: Request) -> str:
    """A request as a log line names it."""
    room = "" if request.room is None else f" room={request.room}"
    return f"rid={request.rid}{room} prompt_tokens={len(request.prompt_ids)}"
