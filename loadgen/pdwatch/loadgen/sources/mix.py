"""What kind each request of a made-up source is, drawn from the seed and its number."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from .config import TextSource, ToolCallsSource

# an over-long prompt exceeds the context by this share at least and at most, in words: no tokenizer makes fewer tokens.
_LEAST_EXCESS: Final = 0.02
_MOST_EXCESS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Mix:
    """One request's kind. `over_long_words` and what follows are None where the request is not of that kind."""

    is_streamed: bool = True
    has_tools: bool = True
    over_long_words: int | None = None
    prefix_group: int | None = None
    policy_tokens: int | None = None
    needle_depth: float = 0.0
    turns: int | None = None


def draw_mix(seed: int, number: int, config: ToolCallsSource | TextSource) -> Mix:
    """The kind of request `number`. Each feature has a draw of its own, so changing one share moves no other."""
    source = Random(f"{seed}/mix/{number}")
    streamed, tools, over_long, excess, prefix, group, long, length, depth, session, turns = (
        source.random() for _ in range(11)
    )
    over_long_words = None
    if over_long < config.over_long_share and config.context_tokens is not None:
        share = 1 + _LEAST_EXCESS + (_MOST_EXCESS - _LEAST_EXCESS) * excess
        over_long_words = int(config.context_tokens * share) + 1
    shared = config.shared_prefix
    prefix_group = int(group * shared.groups) if shared is not None and prefix < shared.share else None
    if isinstance(config, TextSource):
        return Mix(streamed < config.streamed_share, False, over_long_words, prefix_group)
    context, sessions = config.long_context, config.sessions
    policy_tokens, needle_depth, most_turns = None, 0.0, None
    if context is not None and long < context.share:
        policy_tokens = context.fewest_tokens + int(length * (context.most_tokens - context.fewest_tokens + 1))
        needle_depth = depth if context.needle_depth is None else context.needle_depth
    if sessions is not None and session < sessions.share:
        most_turns = sessions.fewest_turns + int(turns * (sessions.most_turns - sessions.fewest_turns + 1))
    return Mix(
        streamed < config.streamed_share,
        tools < config.tools_share,
        over_long_words,
        prefix_group,
        policy_tokens,
        needle_depth,
        most_turns,
    )


def is_mixed(config: ToolCallsSource | TextSource) -> bool:
    """Whether requests can be of more than the one plain kind."""
    if config.streamed_share < 1 or config.over_long_share or config.shared_prefix is not None:
        return True
    if isinstance(config, TextSource):
        return False
    return config.tools_share < 1 or config.long_context is not None or config.sessions is not None
