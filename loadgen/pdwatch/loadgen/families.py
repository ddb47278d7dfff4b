"""The families of tasks: which tools each offers and what it asks of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final, Literal

from . import catalogue, words
from .catalogue import Tool
from .task import ExpectedCall

Family = Literal["copy", "sequence", "nested", "must_not_call", "distractors", "parallel", "deep", "irrelevance"]

MOST_TOOLS: Final = 8
TOOL_BYTES: Final = 175
ASK_BYTES: Final = 150

# a request of several calls needs room for its tools, or it could only repeat one of them.
_FEWEST_BYTES: Final[Mapping[str, int]] = {"sequence": 560, "parallel": 560, "distractors": 675, "deep": 450}
_FEWEST_TOOLS: Final[Mapping[str, int]] = {"sequence": 2, "distractors": 3}
# catalogues of the pool hold none of what these offer.
_OWN_TOOLS: Final = ("distractors", "deep")
_ATTEMPTS: Final = 30


def fewest_bytes(family: Family) -> int:
    """The smallest prompt that a family has room in."""
    return _FEWEST_BYTES.get(family, 0)


def fewest_tools(family: Family) -> int:
    """How many tools a family needs at least."""
    return _FEWEST_TOOLS.get(family, 1)


def may_share(family: Family) -> bool:
    """Whether a catalogue of the seed's pool may serve a family."""
    return family not in _OWN_TOOLS


def suits(tool: Tool, family: Family) -> bool:
    """Whether a family may ask for a call of this tool."""
    if family == "deep":
        return tool.is_deep
    if family == "nested":
        return not tool.is_flat and not tool.is_deep
    return tool.is_flat


def is_text(family: Family) -> bool:
    """Whether a family asks for text instead of calls."""
    return family in ("must_not_call", "irrelevance")


def drawn_tools(source: Random, family: Family, count: int, made_up_share: float) -> tuple[Tool, ...]:
    """`count` tools for a task of its own."""
    if family == "distractors":
        return catalogue.alike(source, count, made_up_share)
    if family == "deep":
        return catalogue.deep(source, count, made_up_share)
    return catalogue.drawn(source, count, made_up_share, nested=family == "nested")


def drawn_calls(
    source: Random, family: Family, tools: Sequence[Tool], nonce: str, made_up_share: float, most_answer_bytes: int
) -> tuple[ExpectedCall, ...]:
    """The calls to ask for; a text field of the first one holds the nonce."""
    suited = [tool for tool in tools if suits(tool, family)]
    if family == "parallel":
        chosen = [source.choice(suited)] * source.choice((2, 3, 4))
    else:
        wanted = source.choice((2, 2, 3)) if family == "sequence" else 1
        chosen = source.sample(suited, wanted) if wanted <= len(suited) else source.choices(suited, k=wanted)
    for attempt in range(_ATTEMPTS):
        # a third call that does not fit, however often its values are drawn, is left out.
        kept = chosen if attempt < _ATTEMPTS // 2 else chosen[:2]
        calls = tuple(
            ExpectedCall(
                tool.name,
                {field: words.value(source, kind, made_up_share) for field, kind in tool.kinds.items()},
            )
            for tool in kept
        )
        first = dict(calls[0].arguments)
        first[source.choice([field for field, kind in kept[0].kinds.items() if kind == "string"])] = nonce
        calls = (ExpectedCall(calls[0].name, first), *calls[1:])
        if answer_bytes(calls, None) <= most_answer_bytes:
            break
    return calls


def ask_for(source: Random, call: ExpectedCall) -> str:
    """The words that ask for a call, its fields in any order."""
    items = list(call.arguments.items())
    source.shuffle(items)
    return f"call {call.name} with " + ", ".join(f"{field} = {compact_json(value)}" for field, value in items)


def drawn_text(source: Random, family: Family, nonce: str, made_up_share: float) -> tuple[str, str]:
    """The text that is the right answer, and the words that ask for it."""
    if family == "irrelevance":
        text = f"no tool fits {nonce}"
        topic = words.words(source, 1, 3, made_up_share)
        return text, f"use a tool to find out what {topic} means, and if none is meant for that, say only {text}"
    parts = [nonce, words.words(source, 1, 2, made_up_share)]
    if source.random() < 0.4:
        parts.append(source.choice(words.EXOTIC))
    source.shuffle(parts)
    text = " ".join(parts)
    return text, f"say {text}"


def answer_bytes(calls: Sequence[ExpectedCall], text: str | None) -> int:
    """Size of an answer in the embedded model's tokens."""
    if text is not None:
        return len(text.encode()) + 1
    fields = sum(
        2 + len(field.encode()) + len(compact_json(value).encode())
        for call in calls
        for field, value in call.arguments.items()
    )
    return 2 + fields + sum(2 + len(call.name.encode()) for call in calls)


def planted_values(nonce: str, calls: Sequence[ExpectedCall], text: str | None) -> tuple[str, ...]:
    """The values too rare to come up by chance, the nonce first."""
    rare = [nonce]
    values: list[Any] = [value for call in calls for value in call.arguments.values()]
    if text is not None:
        values += text.split(" ")
    for value in values:
        is_code = isinstance(value, str) and len(value) >= 6 and set(value) <= set(words.CODE_ALPHABET)
        is_exotic = isinstance(value, str) and not value.isascii()
        is_large = type(value) is int and value >= 2**53
        if value != nonce and (is_code or is_exotic or is_large):
            rare.append(str(value))
    return tuple(rare)


_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


def compact_json(value: Any) -> str:
    """A value as an answer's JSON holds it."""
    return _encode(value)
