"""Seeded prose of a wanted length, cheap enough to make while a server waits.

It is made of 256 common words, each of which is one token in today's large vocabularies, so that words are tokens
without asking a tokenizer; a full stop is one more. Long texts are put together from a pool of paragraphs in an order
of their own, so no two of them share more than the odd paragraph at a place.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Final

from .config import PROSE_BYTES_PER_TOKEN

WORDS: Final = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such "
    "our man me even most made after also did many off before must well back through years much where your way down "
    "should because long each just state those people too how little good world make very year still see own work "
    "men day get here old life both between being under three never know same last another while us might great go "
    "come since against right came take used few house use place during high without again home around small "
    "however found part once general upon school every does got united left number course war until always away "
    "something fact water public less put think almost hand enough far head yet government system better set "
    "nothing night end why called find going look later point next program city business give group young days let "
    "room side social given present several order national possible rather second face per among form often things "
    "large field early line open paper music party table river morning money story green light body color summer "
    "garden window letter winter street doctor market bridge north "
).split()

PARAGRAPH_WORDS: Final = 59
PARAGRAPH_TOKENS: Final = 64

_SENTENCES: Final = (12, 12, 12, 12, 11)
_POOL: Final = 256


def prose(source: Random, seed: int, words: int) -> str:
    """`words` words in sentences, drawn from the source; `seed` chooses the pool of paragraphs."""
    paragraphs = _pool(seed)
    whole, rest = divmod(words, PARAGRAPH_WORDS)
    chosen = [paragraphs[index] for index in source.randbytes(whole)]
    if rest:
        chosen.append(" ".join(paragraphs[source.getrandbits(8)].split(" ", rest)[:rest]).rstrip(".") + ".")
    return " ".join(chosen)


def plain_words(source: Random, words: int) -> str:
    """`words` words without full stops: as many tokens."""
    return " ".join([WORDS[index] for index in source.randbytes(words)])


def words_of(tokens: int, bytes_per_token: float) -> int:
    """How many words of prose make so many tokens; at least one."""
    return max(1, int(tokens * bytes_per_token / PROSE_BYTES_PER_TOKEN * PARAGRAPH_WORDS / PARAGRAPH_TOKENS))


@lru_cache(maxsize=4)
def _pool(seed: int) -> tuple[str, ...]:
    source = Random(f"{seed}/prose")
    return tuple(" ".join(_sentence(source, words) for words in _SENTENCES) for _ in range(_POOL))


def _sentence(source: Random, words: int) -> str:
    return plain_words(source, words).capitalize() + "."
