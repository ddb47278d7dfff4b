"""Synthetic prose to answer at length, for load without tools."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ..task import Task
from ..words import nonce
from .chat import chat_body, completion_body, extensions
from .config import TextSource
from .mix import Mix, draw_mix, is_mixed
from .passages import shared_prefix
from .prose import prose
from .work import CHAT_PATH, COMPLETIONS_PATH, Work

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..plan import Plan

DEFAULT_MAX_TOKENS: Final = 128


class Text:
    """Prompts of so many words, each with a code of its own, by which a leak into another answer is found."""

    def __init__(self, plan: Plan, config: TextSource) -> None:
        self._plan = plan
        self._config = config
        self._max_tokens = config.max_tokens or max(DEFAULT_MAX_TOKENS, config.min_tokens or 0)
        self._extensions = extensions(plan, min_tokens=config.min_tokens, ignore_eos=config.ignore_eos)
        self._plain = None if is_mixed(config) else Mix()

    def work(self, number: int, arm: str) -> Work:
        seed, config = self._plan.seed, self._config
        mix = self._plain or draw_mix(seed, number, config)
        source = Random(f"{seed}/text/{number}")
        words = source.randint(config.fewest_words, config.most_words)
        code = nonce(seed, arm, number)
        provenance: dict[str, str | int] = {"source": "text", "family": "text", "seed": seed}
        if mix.over_long_words is not None:
            words = mix.over_long_words
            provenance |= {"family": "over_long", "expects": "http_error"}
        prefix = ""
        if mix.prefix_group is not None and config.shared_prefix is not None:
            provenance["prefix_group"] = mix.prefix_group
            prefix = shared_prefix(seed, mix.prefix_group, config.shared_prefix, config.bytes_per_token)
        question = f"{prose(source, seed, words)}\nName the code {code}, then go on in the manner of the text."
        if config.endpoint == "completions":
            body = completion_body(
                self._plan,
                f"{prefix}\n{question}" if prefix else question,
                self._max_tokens,
                is_streamed=mix.is_streamed,
                extensions=self._extensions,
            )
            return Work(body, None, mix.is_streamed, True, COMPLETIONS_PATH, provenance)
        system = ({"role": "system", "content": prefix},) if prefix else ()
        messages: tuple[Mapping[str, Any], ...] = (*system, {"role": "user", "content": question})
        task = None
        if mix.over_long_words is None:
            task = Task(f"{seed}-{number}-{arm}", "text", seed, number, code, messages, (), (), None, (code,))
        body = chat_body(
            self._plan, messages, (), self._max_tokens, is_streamed=mix.is_streamed, extensions=self._extensions
        )
        return Work(body, task, mix.is_streamed, True, CHAT_PATH, provenance)

    def follow_up(self, work: Work, answer: Assembled) -> Work | None:
        del work, answer
        return None
