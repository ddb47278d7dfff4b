"""Tool catalogues: what a request offers to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Final

from . import words
from .words import Kind

POOL_SIZES: Final = (1, 2, 3, 4, 6, 8)

_FLAT_KINDS: Final = ("string", "string", "string", "integer", "array", "boolean")
_MOST_LEVELS: Final = 4
# what JSON puts around a tool's name and its fields, and around a field's name and type.
_LINE_BYTES: Final = len('{"name": "", "parameters": {"type": "object", "properties": {}}}\n')
_FIELD_BYTES: Final = len('"": {"type": ""}, ')


@dataclass(frozen=True, slots=True)
class Tool:
    """A callable function: its name, and each field's kind of value (see `words.value`) in schema order."""

    name: str
    kinds: Mapping[str, Kind]

    def openai(self) -> dict[str, Any]:
        """The entry of a request's `tools`; every field is required."""
        return {"type": "function", "function": {"name": self.name, "parameters": _schema(self.kinds)}}

    @property
    def line_bytes(self) -> int:
        """Size of the tool in the embedded model's prompt, one JSON line without `required` and inner fields.

        Names are plain ASCII here, so that the sum of the parts is the size of the whole.
        """
        fields = sum(_FIELD_BYTES + len(field) + len(words.json_type(kind)) for field, kind in self.kinds.items())
        return _LINE_BYTES + len(self.name) + fields - (2 if self.kinds else 0)

    @property
    def is_flat(self) -> bool:
        """Whether no field holds an array of arrays or an object."""
        return all(kind not in ("nested", "object") for kind in self.kinds.values()) and not self.is_deep

    @property
    def is_deep(self) -> bool:
        """Whether a field holds an object whose own fields are laid down."""
        return any(isinstance(kind, Mapping) for kind in self.kinds.values())


@lru_cache(maxsize=256)
def pooled(seed: int, index: int, made_up_share: float) -> tuple[Tool, ...]:
    """Catalogue `index` of the seed's pool: requests that share it share their prompt's beginning.

    Sizes go round POOL_SIZES; each odd one has a tool with nested values.
    """
    source = Random(f"{seed}/catalogue/{index}")
    return drawn(source, POOL_SIZES[index % len(POOL_SIZES)], made_up_share, nested=index % 2 == 1)


@lru_cache(maxsize=256)
def pooled_bytes(seed: int, index: int, made_up_share: float) -> int:
    """Size of the pool's catalogue `index` in the embedded model's prompt."""
    return total_bytes(pooled(seed, index, made_up_share))


def drawn(source: Random, count: int, made_up_share: float, *, nested: bool) -> tuple[Tool, ...]:
    """`count` tools of different names, each with a string field; with `nested`, one has a nested field too."""
    names: set[str] = set()
    while len(names) < count:
        verb = words.name(source, words.VERBS, made_up_share)
        names.add(f"{verb}_{words.name(source, words.NOUNS, made_up_share)}")
    ordered = sorted(names)
    source.shuffle(ordered)
    with_nested = source.choice(ordered) if nested else None
    return tuple(_tool(source, name, made_up_share, nested=name == with_nested) for name in ordered)


def alike(source: Random, count: int, made_up_share: float) -> tuple[Tool, ...]:
    """`count` flat tools, at least two, that are easy to take for one another.

    Each shares the first one's verb or noun, and all have the same fields.
    """
    verb = words.name(source, words.VERBS, made_up_share)
    noun = words.name(source, words.NOUNS, made_up_share)
    first = _tool(source, f"{verb}_{noun}", made_up_share, nested=False)
    names = [first.name]
    while len(names) < count:
        other = (
            f"{verb}_{words.name(source, words.NOUNS, made_up_share)}"
            if len(names) % 2
            else f"{words.name(source, words.VERBS, made_up_share)}_{noun}"
        )
        if other not in names:
            names.append(other)
    source.shuffle(names)
    return tuple(Tool(name, first.kinds) for name in names)


def deep(source: Random, count: int, made_up_share: float) -> tuple[Tool, ...]:
    """`count` tools of which one has a field that is an object in an object, two to four levels down."""
    tools = drawn(source, count, made_up_share, nested=False)
    index = source.randrange(count)
    chosen = tools[index]
    strings = [field for field, kind in chosen.kinds.items() if kind == "string"]
    field = source.choice([field for field in chosen.kinds if field not in strings[:1]])
    levels = source.randint(2, _MOST_LEVELS)
    kinds = {**chosen.kinds, field: _level(source, levels, made_up_share)}
    return (*tools[:index], Tool(chosen.name, kinds), *tools[index + 1 :])


def total_bytes(tools: Sequence[Tool]) -> int:
    """Size of the tools in the embedded model's prompt."""
    return sum(tool.line_bytes for tool in tools)


def _schema(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    properties = {
        field: {"type": words.json_type(kind)} if isinstance(kind, str) else _schema(kind)
        for field, kind in kinds.items()
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _level(source: Random, levels: int, made_up_share: float) -> dict[str, Kind]:
    leaf, inner = words.distinct(source, words.FIELDS, 2, made_up_share)
    below: Kind = source.choice(_FLAT_KINDS) if levels == 1 else _level(source, levels - 1, made_up_share)
    return {leaf: source.choice(_FLAT_KINDS), inner: below}


def _tool(source: Random, name: str, made_up_share: float, *, nested: bool) -> Tool:
    fields = words.distinct(source, words.FIELDS, source.randint(2, 5), made_up_share)
    kinds: dict[str, Kind] = {field: source.choice(_FLAT_KINDS) for field in fields}
    kinds[source.choice(fields)] = "string"
    if nested:
        strings = [field for field, kind in kinds.items() if kind == "string"]
        others = [field for field in fields if field not in strings] or strings[1:]
        kinds[source.choice(others)] = source.choice(("nested", "object"))
    return Tool(name, kinds)
