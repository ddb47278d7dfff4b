"""The next turn of a conversation: the answer goes back, with what its tools returned."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import orjson

from ..words import code
from .work import Work

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..calls import AssembledCall

SessionEnd = Literal["all_turns", "no_call", "unusable_call", "no_text"]


def session_end(work: Work, answer: Assembled) -> SessionEnd | None:
    """Why no turn follows a complete answer; None when one does, or when there is no conversation.

    A conversation that meets an answer it cannot go on from ends early: with no call or no text where that was wanted,
    or with a call that cannot be sent back (no name, or arguments that are not a JSON object).
    """
    if work.session is None:
        return None
    if work.session.is_last:
        return "all_turns"
    if not all(_is_usable(call) for call in answer.tool_calls):
        return "unusable_call"
    if answer.tool_calls:
        return None
    if work.task is not None and work.task.expected_calls:
        return "no_call"
    return None if answer.content else "no_text"


def assistant_message(answer: Assembled) -> dict[str, Any]:
    """The answer as a client gives it back: its text and its calls as they came, without reasoning."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if answer.tool_calls else "")}
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": _call_id(position, call),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text},
            }
            for position, call in enumerate(answer.tool_calls)
        ]
    return message


def tool_messages(source: Random, calls: Sequence[AssembledCall], last_ticket: str | None) -> list[dict[str, Any]]:
    """What the tools returned: each call's name and arguments and a ticket, the last one's as given."""
    tickets = [code(source) for _ in calls]
    if last_ticket is not None:
        tickets[-1:] = [last_ticket]
    return [
        {
            "role": "tool",
            "tool_call_id": _call_id(position, call),
            "content": orjson.dumps(
                {"status": "ok", "tool": call.name, "arguments": _arguments(call), "ticket": tickets[position]}
            ).decode(),
        }
        for position, call in enumerate(calls)
    ]


def _call_id(position: int, call: AssembledCall) -> str:
    return call.id or f"call_{position}"


def _is_usable(call: AssembledCall) -> bool:
    return bool(call.name) and isinstance(_arguments(call), dict)


def _arguments(call: AssembledCall) -> Any:
    # servers leave out the text of a call without arguments.
    try:
        return orjson.loads(call.arguments_text or "{}")
    except orjson.JSONDecodeError:
        return None
