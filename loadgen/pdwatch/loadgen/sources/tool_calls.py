"""Seeded tool-call tasks with known answers."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson

from ..families import compact_json, planted_values
from ..task import Task
from ..workload import make_task
from .chat import chat_body
from .config import ToolCallsSource
from .conversation import assistant_message, session_end, tool_messages
from .mix import Mix, draw_mix, is_mixed
from .passages import policy, shared_prefix
from .prose import prose
from .work import CHAT_PATH, SessionTurn, Work

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..plan import Plan

RULES: Final = (
    "Make every call that is asked for, all of them in one answer and in the order asked, and no other. "
    "Copy values exactly, character for character. When asked to say something, say only that, without calling a tool."
)
_TICKET: Final = "the ticket in the last result"


class ToolCalls:
    """The tasks of the plan's workload, in the mix that the source's configuration asks for."""

    def __init__(self, plan: Plan, config: ToolCallsSource) -> None:
        self._plan = plan
        self._config = config
        self._workload = plan.workload
        self._text_workload = plan.workload.model_copy(update={"families": {"must_not_call": 1.0}})
        self._max_tokens = config.max_tokens or plan.workload.max_completion_tokens
        self._plain = None if is_mixed(config) else Mix()

    def work(self, number: int, arm: str) -> Work:
        seed = self._plan.seed
        mix = self._plain or draw_mix(seed, number, self._config)
        if mix.over_long_words is not None:
            return self._over_long(number, mix, mix.over_long_words)
        task = make_task(seed, number, self._workload if mix.has_tools else self._text_workload, arm)
        provenance: dict[str, str | int] = {"source": "tool_calls", "family": task.family, "seed": seed}
        if not mix.has_tools:
            task = replace(task, family="plain", tools=())
            provenance["family"] = "plain"
        if mix.policy_tokens is not None:
            provenance["context_tokens"] = mix.policy_tokens
            provenance["needle_depth"] = f"{mix.needle_depth:.3f}"
            task = self._behind_policy(task, mix.policy_tokens, mix.needle_depth)
        system = self._system(mix)
        if system:
            task = replace(task, messages=({"role": "system", "content": system}, *task.messages))
        if mix.prefix_group is not None:
            provenance["prefix_group"] = mix.prefix_group
        session = None
        if mix.turns is not None:
            session = SessionTurn(f"{seed}-{number}-{arm}", 0, mix.turns)
        return self._work(task, mix.is_streamed, provenance, session)

    def follow_up(self, work: Work, answer: Assembled) -> Work | None:
        turn, task = work.session, work.task
        if turn is None or task is None or self._config.sessions is None or session_end(work, answer) is not None:
            return None
        seed, index = self._plan.seed, turn.index + 1
        arm = turn.session_id.split("-", 2)[2]
        following = make_task(seed, task.number, self._workload if task.tools else self._text_workload, arm, index)
        ticket = None
        if self._config.sessions.refers_back and answer.tool_calls and following.expected_calls:
            following, ticket = _referring(following, _TICKET), following.nonce
        source = Random(f"{seed}/results/{task.number}/{index}")
        # what was sent is what the conversation goes on from, byte for byte in meaning.
        sent = orjson.loads(work.body)["messages"]
        messages = (
            *sent,
            assistant_message(answer),
            *tool_messages(source, answer.tool_calls, ticket),
            *following.messages,
        )
        following = replace(following, messages=messages, tools=task.tools)
        provenance = {**work.provenance, "family": following.family if task.tools else "plain"}
        return self._work(following, work.is_streamed, provenance, replace(turn, index=index))

    def _work(
        self, task: Task, is_streamed: bool, provenance: dict[str, str | int], session: SessionTurn | None
    ) -> Work:
        body = chat_body(self._plan, task.messages, task.tools, self._max_tokens, is_streamed=is_streamed)
        return Work(body, task, is_streamed, True, CHAT_PATH, provenance, session)

    def _system(self, mix: Mix) -> str:
        parts = [RULES] if self._config.has_rules else []
        if mix.prefix_group is not None and self._config.shared_prefix is not None:
            prefix = shared_prefix(
                self._plan.seed, mix.prefix_group, self._config.shared_prefix, self._config.bytes_per_token
            )
            parts.insert(0, prefix)
        return "\n".join(parts)

    def _behind_policy(self, task: Task, tokens: int, depth: float) -> Task:
        text, record = policy(self._plan.seed, task.number, tokens, self._config.bytes_per_token, depth, task.nonce)
        asking = _referring(task, f"the code of record {record}")
        return replace(asking, messages=({"role": "user", "content": f"{text}\n{_content(asking)}"},))

    def _over_long(self, number: int, mix: Mix, words: int) -> Work:
        source = Random(f"{self._plan.seed}/over_long/{number}")
        messages = ({"role": "user", "content": prose(source, self._plan.seed, words)},)
        body = chat_body(self._plan, messages, (), self._max_tokens, is_streamed=mix.is_streamed)
        provenance: dict[str, str | int] = {
            "source": "tool_calls",
            "family": "over_long",
            "seed": self._plan.seed,
            "expects": "http_error",
        }
        return Work(body, None, mix.is_streamed, True, CHAT_PATH, provenance)


def _referring(task: Task, phrase: str) -> Task:
    """The same task, its nonce named by a phrase in the question; a text becomes the nonce alone."""
    if task.expected_text is not None:
        content = f"Please say {phrase}."
        planted: tuple[str, ...] = planted_values(task.nonce, (), task.nonce)
        return replace(task, messages=_question(content), expected_text=task.nonce, planted=planted)
    content = _content(task).replace(compact_json(task.nonce), phrase, 1)
    return replace(task, messages=_question(content))


def _question(content: str) -> tuple[dict[str, Any]]:
    return ({"role": "user", "content": content},)


def _content(task: Task) -> str:
    content: str = task.messages[-1]["content"]
    return content
