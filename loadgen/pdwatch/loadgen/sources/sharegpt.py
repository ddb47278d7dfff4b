"""Conversations of people with assistants, in ShareGPT's form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson

from ..task import Task
from .chat import chat_body, extensions
from .config import ShareGptSource
from .conversation import assistant_message, session_end
from .rows import Deck, open_array_or_lines
from .work import CHAT_PATH, SessionTurn, Work

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..plan import Plan

_SPEAKERS: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
_KEYS: Final = ("conversations", "conversation", "messages")


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A system prompt, if any, and each question with the recorded answer, None where none follows it."""

    system: str | None
    questions: tuple[tuple[str, str | None], ...]


class ShareGpt:
    """A conversation's first question, or all of them in turn; the answers in between are the server's own."""

    def __init__(self, plan: Plan, config: ShareGptSource) -> None:
        self._plan = plan
        self._config = config
        self._extensions: dict[str, Any] = {}
        if config.has_recorded_lengths and plan.dialect == "sglang":
            self._extensions = extensions(plan, ignore_eos=True)
        self._rows = open_array_or_lines(config.path, lambda value: bool(_conversation(value).questions))
        self._deck = Deck(len(self._rows), config.order, plan.seed)

    def work(self, number: int, arm: str) -> Work:
        seed = self._plan.seed
        index = self._deck.index(number)
        conversation = _conversation(self._rows.value(index))
        provenance: dict[str, str | int] = {
            "source": "sharegpt",
            "family": "sharegpt",
            "file": self._config.path.name,
            "row": self._rows.number(index),
            "seed": seed,
        }
        session = None
        if self._config.turns == "all":
            turns = min(len(conversation.questions), self._config.most_turns)
            session = SessionTurn(f"{seed}-{number}-{arm}", 0, turns)
        system = [] if conversation.system is None else [{"role": "system", "content": conversation.system}]
        question, recorded = conversation.questions[0]
        messages = [*system, {"role": "user", "content": question}]
        is_streamed = Random(f"{seed}/mix/{number}").random() < self._config.streamed_share
        task_id = f"{seed}-{number}-{arm}"
        task = Task(task_id, "sharegpt", seed, number, "", tuple(messages), (), (), None, ())
        return self._work(task, recorded, is_streamed, provenance, session)

    def follow_up(self, work: Work, answer: Assembled) -> Work | None:
        turn, task = work.session, work.task
        if turn is None or task is None or session_end(work, answer) is not None:
            return None
        following = replace(turn, index=turn.index + 1)
        conversation = _conversation(self._rows.value(self._deck.index(task.number)))
        question, recorded = conversation.questions[following.index]
        sent = orjson.loads(work.body)["messages"]
        messages = (*sent, assistant_message(answer), {"role": "user", "content": question})
        task = replace(task, task_id=f"{turn.session_id}-turn{following.index}", messages=messages)
        return self._work(task, recorded, work.is_streamed, work.provenance, following)

    def _work(
        self,
        task: Task,
        recorded: str | None,
        is_streamed: bool,
        provenance: Mapping[str, str | int],
        session: SessionTurn | None,
    ) -> Work:
        max_tokens, more = self._config.max_tokens, {}
        if self._config.has_recorded_lengths and recorded:
            length = math.ceil(len(recorded.encode("utf-8", "surrogatepass")) / self._config.bytes_per_token)
            max_tokens, more = min(length, max_tokens or length), self._extensions
        body = chat_body(self._plan, task.messages, (), max_tokens, is_streamed=is_streamed, extensions=more)
        return Work(body, task, is_streamed, True, CHAT_PATH, provenance, session)


def _conversation(value: Any) -> _Conversation:
    """A row's conversation up to the first turn that has no form here. Raises ValueError when it has none at all."""
    turns = next((value[key] for key in _KEYS if key in value), None) if isinstance(value, Mapping) else None
    if not isinstance(turns, list):
        raise ValueError(f"is {value!r:.80}; it needs a list of turns under {' or '.join(_KEYS)}")
    system: str | None = None
    questions: list[tuple[str, str | None]] = []
    for speaker, text in _spoken(turns):
        if speaker == "system" and not questions:
            system = text
        elif speaker == "user":
            questions.append((text, None))
        elif speaker == "assistant" and questions and questions[-1][1] is None:
            questions[-1] = (questions[-1][0], text)
    return _Conversation(system, tuple(questions))


def _spoken(turns: Sequence[Any]) -> list[tuple[str, str]]:
    spoken = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            break
        speaker = _SPEAKERS.get(str(turn.get("from", turn.get("role"))).lower())
        text = turn.get("value", turn.get("content"))
        if speaker is None or not isinstance(text, str) or not text.strip():
            break
        spoken.append((speaker, text))
    return spoken
