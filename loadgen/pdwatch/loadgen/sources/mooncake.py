"""Prompts of the lengths, and with the shared beginnings, that a trace in Mooncake's form tells of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ..task import Task
from ..words import nonce
from .chat import chat_body, extensions
from .config import MooncakeSource
from .prose import plain_words
from .rows import Deck, open_lines
from .work import CHAT_PATH, Work

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..plan import Plan

# a code of 12 letters and digits makes about as many tokens as these words.
_NONCE_WORDS: Final = 10
_MOST_LENGTH: Final = 2**24


class Mooncake:
    """Row n of the trace for the n-th request of a phase."""

    def __init__(self, plan: Plan, config: MooncakeSource) -> None:
        self._plan = plan
        self._config = config
        self._extensions = extensions(plan, ignore_eos=config.ignore_eos)
        self._rows = open_lines(config.path, _accept)
        self._deck = Deck(len(self._rows), "file", plan.seed)

    def work(self, number: int, arm: str) -> Work:
        seed, config = self._plan.seed, self._config
        index = self._deck.index(number)
        row = self._rows.value(index)
        words = min(row["input_length"], config.most_input_tokens or row["input_length"])
        code = nonce(seed, arm, number) if words > 2 * _NONCE_WORDS else ""
        prompt = self._prompt(index, row.get("hash_ids", ()), words - _NONCE_WORDS if code else words)
        if code:
            prompt = f"{prompt} {code}"
        messages = ({"role": "user", "content": prompt},)
        provenance: dict[str, str | int] = {
            "source": "mooncake",
            "family": "mooncake",
            "file": config.path.name,
            "row": self._rows.number(index),
            "seed": seed,
        }
        is_streamed = Random(f"{seed}/mix/{number}").random() < config.streamed_share
        max_tokens = config.max_tokens or row["output_length"]
        body = chat_body(self._plan, messages, (), max_tokens, is_streamed=is_streamed, extensions=self._extensions)
        planted = (code,) if code else ()
        task = Task(f"{seed}-{number}-{arm}", "mooncake", seed, number, code, messages, (), (), None, planted)
        return Work(body, task, is_streamed, True, CHAT_PATH, provenance)

    def follow_up(self, work: Work, answer: Assembled) -> Work | None:
        del work, answer
        return None

    def _prompt(self, index: int, hash_ids: Sequence[int], words: int) -> str:
        size = self._config.block_tokens
        blocks = [_block(self._plan.seed, hash_id, size) for hash_id in hash_ids[: -(-words // size)]]
        missing = words - len(blocks) * size
        if missing > 0:
            # rows whose hash ids cover less than their length share no more than these say.
            blocks.append(plain_words(Random(f"{self._plan.seed}/row/{index}"), missing))
        elif missing < 0:
            blocks[-1] = " ".join(blocks[-1].split(" ")[:missing])
        return " ".join(blocks)


@lru_cache(maxsize=4096)
def _block(seed: int, hash_id: int, words: int) -> str:
    return plain_words(Random(f"{seed}/block/{hash_id}"), words)


def _accept(value: Any) -> bool:
    if not isinstance(value, Mapping):
        raise ValueError(f"is {value!r:.80}; each line must be one JSON object")
    for name in ("input_length", "output_length"):
        length = value.get(name)
        if type(length) is not int or not 1 <= length <= _MOST_LENGTH:
            raise ValueError(f"{name} is {length!r:.80}; give a number of tokens from 1 to {_MOST_LENGTH}")
    hash_ids = value.get("hash_ids", [])
    if not isinstance(hash_ids, list) or any(type(hash_id) is not int for hash_id in hash_ids):
        raise ValueError(f"hash_ids is {hash_ids!r:.80}; give a list of numbers")
    return True
