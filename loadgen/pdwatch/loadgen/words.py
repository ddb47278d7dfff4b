"""Names and values that tasks are made of, drawn from a seeded source.

Listed words are the ones the embedded model has certainly seen; made-up ones show that it copies what it is asked
for. Every function takes the source first and nothing else holds state.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping
from random import Random
from typing import Any, Final, TypeAlias

# what a field holds: a name that `value` knows, or the fields of an object.
Kind: TypeAlias = "str | Mapping[str, Kind]"

VERBS: Final = (
    "record", "book", "cancel", "lookup", "send", "update", "create", "schedule",
    "archive", "transfer", "refund", "dispatch", "assign", "measure", "export",
)  # fmt: skip
NOUNS: Final = (
    "event", "table", "order", "user", "invoice", "ticket", "meeting", "shipment",
    "account", "sensor", "report", "job", "alert", "room", "flight",
)  # fmt: skip
FIELDS: Final = (
    "ref", "note", "count", "city", "who", "at", "code", "tags", "amount", "unit", "lang", "zone", "level", "owner",
    "kind",
)  # fmt: skip
WORDS: Final = (
    "amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "haze", "iris", "jade", "kelp", "lotus", "maple",
    "north", "opal", "pearl", "quartz", "river", "slate", "tulip", "umber", "violet", "willow", "xenon", "yarrow",
    "zephyr",
)  # fmt: skip
EXOTIC: Final = (
    "東京", "北京市", "서울", "café", "naïve", "🚀🔥", "Ω≈ç", "Łódź", "ñandú", "✓ done", "москва", "ירושלים",
)  # fmt: skip

NONCE_LENGTH: Final = 12
CODE_ALPHABET: Final = string.ascii_uppercase + string.digits

_CONSONANTS: Final = "bcdfghjklmnprstvwxz"
_VOWELS: Final = "aeiou"


def nonce(seed: int, arm: str, number: int) -> str:
    """The code that only this request carries: 12 characters of [A-Z0-9], other in each arm."""
    digest = hashlib.blake2b(f"{seed}/{arm}/{number}".encode(), digest_size=16, person=b"pdwatch-nonce").digest()
    value = int.from_bytes(digest, "big")
    letters = []
    for _ in range(NONCE_LENGTH):
        value, index = divmod(value, len(CODE_ALPHABET))
        letters.append(CODE_ALPHABET[index])
    return "".join(letters)


def name(source: Random, listed: tuple[str, ...], made_up_share: float) -> str:
    """A listed word, or with the given probability a made-up one."""
    return made_up(source) if source.random() < made_up_share else source.choice(listed)


def made_up(source: Random) -> str:
    """One to three pronounceable syllables that stand in no list."""
    # Random.choice and randint spelled out: half of a task's time would go into calling them.
    bits = source.getrandbits
    while (syllables := bits(2)) > 2:
        pass
    letters = []
    for _ in range(syllables + 1):
        while (first := bits(5)) > 18:
            pass
        while (second := bits(3)) > 4:
            pass
        while (last := bits(5)) > 18:
            pass
        while (ending := bits(2)) > 2:
            pass
        letters.append(_CONSONANTS[first] + _VOWELS[second] + (_CONSONANTS[last] if ending == 2 else ""))
    return "".join(letters)


def distinct(source: Random, listed: tuple[str, ...], count: int, made_up_share: float) -> list[str]:
    """`count` names, no two of them the same."""
    chosen: list[str] = []
    while len(chosen) < count:
        drawn = name(source, listed, made_up_share)
        if drawn not in chosen:
            chosen.append(drawn)
    return chosen


def words(source: Random, fewest: int, most: int, made_up_share: float) -> str:
    """Between `fewest` and `most` words, joined by spaces."""
    return " ".join([name(source, WORDS, made_up_share) for _ in range(source.randint(fewest, most))])


def code(source: Random) -> str:
    """A reference code of 6 to 16 characters of [A-Z0-9]."""
    return "".join(source.choices(CODE_ALPHABET, k=source.randint(6, 16)))


def text(source: Random, made_up_share: float) -> str:
    """A string value: a code, something outside ASCII, or a few words."""
    choice = source.random()
    if choice < 0.4:
        return code(source)
    if choice < 0.6:
        return source.choice(EXOTIC) + source.choice(("", " " + name(source, WORDS, made_up_share)))
    return words(source, 1, 4, made_up_share)


def integer(source: Random) -> int:
    """A small count, a large one, or one that a double cannot hold exactly."""
    lowest, highest = source.choice(((0, 99), (10**6, 10**9), (2**53, 2**62)))
    return source.randint(lowest, highest)


def json_type(kind: Kind) -> str:
    """The JSON Schema type of a kind's values."""
    if not isinstance(kind, str):
        return "object"
    return "array" if kind == "nested" else kind


def value(source: Random, kind: Kind, made_up_share: float) -> Any:
    """A value of one of the kinds string, integer, boolean, array, nested and object, or with the given fields."""
    if not isinstance(kind, str):
        return {field: value(source, inner, made_up_share) for field, inner in kind.items()}
    if kind == "integer":
        return integer(source)
    if kind == "boolean":
        return source.random() < 0.5
    if kind == "array":
        return words(source, 1, 4, made_up_share).split()
    if kind == "nested":
        return [words(source, 1, 3, made_up_share).split() for _ in range(source.randint(1, 3))]
    if kind == "object":
        return {
            name(source, WORDS, made_up_share): name(source, WORDS, made_up_share) for _ in range(source.randint(1, 2))
        }
    return text(source, made_up_share)
