"""Tool catalogues: what a request offers to call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Final

from . import words

POOL_SIZES: Final = (1, 2, 3, 4, 6, 8)

_FLAT_KINDS: Final = ("string", "string", "string", "integer", "array", "boolean")
_JSON_TYPES: Final[Mapping[str, str]] = {"nested": "array"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A callable function: its name, and each field's kind of value (see `words.value`) in schema order."""

    name: str
    kinds: Mapping[str, str]

    def openai(self) -> dict[str, Any]:
        """The entry of a request's `tools`; every field is required."""
        properties = {field: {"type": _JSON_TYPES.get(kind, kind)} for field, kind in self.kinds.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}

    @property
    def line_bytes(self) -> int:
        """Size of the tool in the embedded model's prompt, one JSON line without `required`."""
        properties = {field: {"type": _JSON_TYPES.get(kind, kind)} for field, kind in self.kinds.items()}
        line = {"name": self.name, "parameters": {"type": "object", "properties": properties}}
        return len(json.dumps(line, ensure_ascii=False).encode()) + 1

    @property
    def is_flat(self) -> bool:
        """Whether no field holds an array of arrays or an object."""
        return not {"nested", "object"} & set(self.kinds.values())


@lru_cache(maxsize=256)
def pooled(seed: int, index: int, made_up_share: float) -> tuple[Tool, ...]:
    """Catalogue `index` of the seed's pool: requests that share it share their prompt's beginning.

    Sizes go round POOL_SIZES; each odd one has a tool with nested values.
    """
    source = Random(f"{seed}/catalogue/{index}")
    return drawn(source, POOL_SIZES[index % len(POOL_SIZES)], made_up_share, nested=index % 2 == 1)


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


def total_bytes(tools: Sequence[Tool]) -> int:
    """Size of the tools in the embedded model's prompt."""
    return sum(tool.line_bytes for tool in tools)


def _tool(source: Random, name: str, made_up_share: float, *, nested: bool) -> Tool:
    wanted = source.randint(2, 5)
    fields: list[str] = []
    while len(fields) < wanted:
        field = words.name(source, words.FIELDS, made_up_share)
        if field not in fields:
            fields.append(field)
    kinds = {field: source.choice(_FLAT_KINDS) for field in fields}
    kinds[source.choice(fields)] = "string"
    if nested:
        strings = [field for field, kind in kinds.items() if kind == "string"]
        others = [field for field in fields if field not in strings] or strings[1:]
        kinds[source.choice(others)] = source.choice(("nested", "object"))
    return Tool(name, kinds)
