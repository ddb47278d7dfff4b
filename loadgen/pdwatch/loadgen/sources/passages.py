"""Long texts to stand before a question: shared system prompts, and policies with a value hidden in them."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Final

from ..words import CODE_ALPHABET, NONCE_LENGTH
from .config import SharedPrefix
from .prose import prose, words_of

_DECOYS: Final = 3
_KEY_LENGTH: Final = 6


@lru_cache(maxsize=256)
def shared_prefix(seed: int, group: int, config: SharedPrefix, bytes_per_token: float) -> str:
    """The system prompt of a group; groups differ from their first words on."""
    source = Random(f"{seed}/prefix/{group}")
    return f"Handbook {_code(source, _KEY_LENGTH)}. {prose(source, seed, words_of(config.tokens, bytes_per_token))}"


def policy(
    seed: int, number: int, tokens: int, bytes_per_token: float, needle_depth: float, value: str
) -> tuple[str, str]:
    """A text of about `tokens` tokens that gives `value` as the code of a record, and that record's name.

    The record stands `needle_depth` of the way down; three others with codes of their own stand elsewhere.
    """
    source = Random(f"{seed}/policy/{number}")
    words = words_of(tokens, bytes_per_token)
    name = _code(source, _KEY_LENGTH)
    records = [(needle_depth, f"The code of record {name} is {value}.")]
    for _ in range(_DECOYS):
        decoy = f"The code of record {_code(source, _KEY_LENGTH)} is {_code(source, NONCE_LENGTH)}."
        records.append((source.random(), decoy))
    parts = [f"File {_code(source, _KEY_LENGTH)}."]
    written = 0
    for depth, record in sorted(records):
        until = int(depth * words)
        if until > written:
            parts.append(prose(source, seed, until - written))
            written = until
        parts.append(record)
    if words > written:
        parts.append(prose(source, seed, words - written))
    return " ".join(parts), name


def _code(source: Random, length: int) -> str:
    return "".join(source.choices(CODE_ALPHABET, k=length))
