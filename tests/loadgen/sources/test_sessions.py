"""Conversations: what goes back, what is asked next, and where they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pdwatch.loadgen import Assembled
from pdwatch.loadgen.sources import SessionTurn, Work
from pdwatch.loadgen.sources.conversation import session_end

SESSIONS = {"sessions": {"fewest_turns": 3, "most_turns": 3}}


def messages(work: Work) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = json.loads(work.body)["messages"]
    return sent


def right_answer(work: Work, make_answer: Callable[..., Assembled]) -> Assembled:
    assert work.task is not None
    if work.task.expected_text is not None:
        return make_answer(work.task.expected_text)
    return make_answer(
        calls=[
            (f"id-{index}", call.name, json.dumps(call.arguments))
            for index, call in enumerate(work.task.expected_calls)
        ]
    )


@pytest.mark.parametrize("number", range(60))
def test_a_conversation_goes_its_length(open_kind, make_answer, number: int) -> None:
    source = open_kind("tool_calls", **SESSIONS)
    first = source.work(number, "candidate")
    assert first.session == SessionTurn(f"7-{number}-candidate", 0, 3)
    seen, work = [first], first
    while (following := source.follow_up(work, right_answer(work, make_answer))) is not None:
        assert following == source.follow_up(work, right_answer(work, make_answer))
        assert messages(following)[: len(messages(work))] == messages(work)
        work = following
        seen.append(work)
    assert [work.session.index for work in seen if work.session] == [0, 1, 2]
    assert session_end(work, right_answer(work, make_answer)) == "all_turns"
    tasks = [work.task for work in seen if work.task is not None]
    assert len({task.nonce for task in tasks}) == len({task.task_id for task in tasks}) == 3
    for work, task in zip(seen, tasks, strict=True):
        assert task.tools == tasks[0].tools
        assert list(task.messages) == messages(work)
        names = {tool["function"]["name"] for tool in task.tools}
        assert {call.name for call in task.expected_calls} <= names


def call_session(open_kind, make_answer, **config: Any) -> tuple[Work, Work]:
    """A first turn of two calls, and the second turn after it, which wants calls too."""
    workload = {"families": {"sequence": 1}}
    source = open_kind("tool_calls", {"workload": workload}, **{**SESSIONS, **config})
    first = source.work(4, "candidate")
    second = source.follow_up(first, right_answer(first, make_answer))
    assert second is not None
    return first, second


def test_the_result_goes_back_and_is_needed(open_kind, make_answer) -> None:
    first, second = call_session(open_kind, make_answer)
    assert first.task is not None and second.task is not None
    answered, *results, asked = messages(second)[1:]
    calls = first.task.expected_calls
    assert answered["role"] == "assistant"
    assert [json.loads(call["function"]["arguments"]) for call in answered["tool_calls"]] == [
        call.arguments for call in calls
    ]
    assert [result["tool_call_id"] for result in results] == [f"id-{index}" for index in range(len(calls))]
    contents = [json.loads(result["content"]) for result in results]
    assert [(content["tool"], content["arguments"]) for content in contents] == [
        (call.name, call.arguments) for call in calls
    ]
    # only the last result tells what the next call must hold
    assert contents[-1]["ticket"] == second.task.nonce
    assert second.task.nonce not in asked["content"]
    assert "= the ticket in the last result" in asked["content"]
    assert second.task.nonce in second.task.expected_calls[0].arguments.values()


def test_each_turn_may_be_whole_in_itself(open_kind, make_answer) -> None:
    sessions = {"fewest_turns": 3, "most_turns": 3, "refers_back": False}
    _, second = call_session(open_kind, make_answer, sessions=sessions)
    assert second.task is not None
    assert f'"{second.task.nonce}"' in messages(second)[-1]["content"]
    assert second.task.nonce not in messages(second)[-2]["content"]


@pytest.mark.parametrize(
    ("content", "calls", "end"),
    [
        (None, [(None, "f", "{}")], None),
        (None, [("a", "f", "")], None),
        ("I will not", [], "no_call"),
        (None, [], "no_call"),
        (None, [("a", "f", '{"x": ')], "unusable_call"),
        (None, [("a", "f", "[1]")], "unusable_call"),
        (None, [("a", "", "{}")], "unusable_call"),
        (None, [("a", "f", "{}"), ("b", "g", "{")], "unusable_call"),
    ],
)
def test_where_a_conversation_ends(open_kind, make_answer, content, calls, end) -> None:
    source = open_kind("tool_calls", {"workload": {"families": {"copy": 1}}}, **SESSIONS)
    work = source.work(1, "candidate")
    answer = make_answer(content, calls)
    assert session_end(work, answer) == end
    following = source.follow_up(work, answer)
    assert (following is None) == (end is not None)
    if following is not None:
        # a call without an id gets one, the same in both places
        answered, result = messages(following)[1:3]
        assert answered["tool_calls"][0]["id"] == result["tool_call_id"] == (calls[0][0] or "call_0")


def test_text_turns(open_kind, make_answer) -> None:
    source = open_kind("tool_calls", {"workload": {"families": {"must_not_call": 1}}}, **SESSIONS)
    work = source.work(1, "candidate")
    assert session_end(work, make_answer("")) == "no_text"
    following = source.follow_up(work, make_answer("amber"))
    assert following is not None
    assert [message["role"] for message in messages(following)] == ["user", "assistant", "user"]
    # a call nobody asked for is answered like any other
    called = source.follow_up(work, make_answer(calls=[("a", "f", "{}")]))
    assert called is not None
    assert [message["role"] for message in messages(called)] == ["user", "assistant", "tool", "user"]


def test_without_a_session_nothing_follows(open_kind, make_answer) -> None:
    source = open_kind("tool_calls")
    assert source.follow_up(source.work(1, "candidate"), make_answer("x")) is None
    assert session_end(source.work(1, "candidate"), make_answer("x")) is None
