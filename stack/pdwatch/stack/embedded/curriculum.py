"""Training tasks: tool-call requests of every family the model has to answer, with their one right answer.

Half of all names and words are drawn from lists, half are made up on the spot, so that the model learns to copy what
the request says rather than to remember it.
"""

from __future__ import annotations

import json
import random
import string
from typing import Any, Final

from .template import render_answer, render_prompt

VERBS: Final = (
    "record book cancel lookup send update create schedule archive transfer refund dispatch assign measure export"
).split()
NOUNS: Final = (
    "event table order user invoice ticket meeting shipment account sensor report job alert room flight"
).split()
FIELDS: Final = "ref note count city who at code tags amount unit lang zone level owner kind".split()
WORDS: Final = (
    "amber basil cedar delta ember fjord grove haze iris jade kelp lotus maple north opal pearl quartz river slate "
    "tulip umber violet willow xenon yarrow zephyr"
).split()
EXOTIC: Final = [
    "東京",
    "北京市",
    "서울",
    "café",
    "naïve",
    "🚀🔥",
    "Ω≈ç",
    "Łódź",
    "ñandú",
    "✓ done",
    "москва",
    "ירושלים",
]
KINDS: Final = ("string", "string", "string", "string", "integer", "integer", "boolean", "array", "nested", "object")

# a length bucket in tokens: fewest tools, most tools, most filler words.
SHAPES: Final[dict[int, tuple[int, int, int]]] = {512: (1, 2, 12), 1024: (1, 5, 60), 2048: (3, 10, 160)}

CONSONANTS: Final = "bcdfghjklmnprstvwxz"
VOWELS: Final = "aeiou"
CALL_COUNTS: Final = (1, 1, 1, 1, 1, 1, 2, 2, 2, 3)
TEXT_SHARE: Final = 0.12
MADE_UP_SHARE: Final = 0.5
REPEATED_TOOL_SHARE: Final = 0.15


def sample(source: random.Random, bucket: int) -> tuple[list[int], list[int]]:
    """One task of a bucket's shape: token ids of the prompt and of the right answer.

    The lengths vary around the bucket's; the caller keeps what fits.
    """
    fewest, most, filler_words = SHAPES[bucket]
    tools = _catalogue(source, source.randint(fewest, most))
    filler = "" if source.random() < 0.4 else _words(source, 3, filler_words) + ". "
    if source.random() < TEXT_SHARE:
        text = _text(source)
        return render_prompt([_user(f"{filler}Please say {text}.")], tools), _exact(text, [])
    calls, asks = [], []
    for tool in _chosen(source, tools, source.choice(CALL_COUNTS)):
        function = tool["function"]
        values = {field: _value(source, _KIND_OF[id(schema)]) for field, schema in _fields(function)}
        items = list(values.items())
        source.shuffle(items)
        wanted = ", ".join(f"{field} = {_json(value)}" for field, value in items)
        asks.append(f"call {function['name']} with {wanted}")
        # the parser's own form: an object with ", " and ": " between its parts.
        calls.append((function["name"], _json(values)))
    return render_prompt([_user(f"{filler}Please {' then '.join(asks)}.")], tools), _exact(None, calls)


# one schema object a kind, shared by all tools, so that a field's kind is found by the object itself.
_SCHEMAS: Final[dict[str, dict[str, str]]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "array": {"type": "array"},
    "nested": {"type": "array"},
    "object": {"type": "object"},
}
_KIND_OF: Final = {id(schema): kind for kind, schema in _SCHEMAS.items()}


def _catalogue(source: random.Random, count: int) -> list[dict[str, Any]]:
    names: set[str] = set()
    while len(names) < count:
        names.add(f"{_name(source, VERBS)}_{_name(source, NOUNS)}")
    shuffled = sorted(names)
    source.shuffle(shuffled)
    return [_tool(source, name) for name in shuffled]


def _chosen(source: random.Random, tools: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Tools to call: different ones as a rule, at times one tool several times."""
    if source.random() < REPEATED_TOOL_SHARE:
        return [source.choice(tools) for _ in range(count)]
    return source.sample(tools, min(count, len(tools)))


def _tool(source: random.Random, name: str) -> dict[str, Any]:
    wanted = source.randint(2, 5)
    fields: dict[str, dict[str, str]] = {}
    while len(fields) < wanted:
        fields[_name(source, FIELDS)] = _SCHEMAS[source.choice(KINDS)]
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": fields}}}


def _fields(function: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    return list(function["parameters"]["properties"].items())


def _value(source: random.Random, kind: str) -> Any:
    if kind == "integer":
        return source.choice(
            (
                source.randint(0, 99),
                source.randint(10**6, 10**9),
                source.randint(2**53, 2**62),
                -source.randint(1, 9999),
            )
        )
    if kind == "boolean":
        return source.random() < 0.5
    if kind == "array":
        return [_word(source) for _ in range(source.randint(1, 4))]
    if kind == "nested":
        return [[_word(source) for _ in range(source.randint(1, 3))] for _ in range(source.randint(1, 3))]
    if kind == "object":
        return {_word(source): _word(source) for _ in range(source.randint(1, 2))}
    return _text(source)


def _text(source: random.Random) -> str:
    """A string value: a code, words, something outside ASCII, or a mix of them."""
    choice = source.random()
    if choice < 0.35:
        return _code(source)
    if choice < 0.5:
        return _exotic(source) + source.choice(("", " " + _word(source)))
    if choice < 0.65:
        parts = [_code(source), _words(source, 1, 2), *([_exotic(source)] if source.random() < 0.4 else [])]
        source.shuffle(parts)
        return " ".join(parts)
    return _words(source, 1, 4)


def _code(source: random.Random) -> str:
    return "".join(source.choices(string.ascii_uppercase + string.digits, k=source.randint(6, 16)))


def _exotic(source: random.Random) -> str:
    if source.random() < 0.6:
        return source.choice(EXOTIC)
    blocks = ((0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F5FF), (0x410, 0x44F), (0xC0, 0xFF))
    first, last = source.choice(blocks)
    return "".join(chr(source.randint(first, last)) for _ in range(source.randint(1, 4)))


def _name(source: random.Random, listed: list[str]) -> str:
    return _made_up(source) if source.random() < MADE_UP_SHARE else source.choice(listed)


def _word(source: random.Random) -> str:
    return _name(source, WORDS)


def _words(source: random.Random, fewest: int, most: int) -> str:
    return " ".join(_word(source) for _ in range(source.randint(fewest, most)))


def _made_up(source: random.Random) -> str:
    if source.random() < 0.3:
        return "".join(source.choices(string.ascii_lowercase, k=source.randint(2, 9)))
    return "".join(
        source.choice(CONSONANTS) + source.choice(VOWELS) + source.choice(("", "", source.choice(CONSONANTS)))
        for _ in range(source.randint(1, 3))
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _exact(content: str | None, calls: list[tuple[str, str]]) -> list[int]:
    answer = render_answer(content, calls)
    assert answer is not None, "a generated answer always has a token form"
    return answer
