"""Conversations in ShareGPT's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import PlanError
from pdwatch.loadgen.sources.conversation import session_end


def said(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "c", "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


TALK = said(("human", "one?"), ("gpt", "a" * 40), ("human", "two?"), ("gpt", "b"), ("human", "three?"))


def messages(work) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = json.loads(work.body)["messages"]
    return sent


def write(tmp_path: Path, rows: list[Any], form: str) -> Path:
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(rows) if form == "array" else "\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("form", ["array", "lines"])
def test_first_questions(open_kind, tmp_path: Path, form: str) -> None:
    rows = [TALK, said(("gpt", "hello")), said(("system", "s"), ("user", "q")), said()]
    source = open_kind("sharegpt", path=write(tmp_path, rows, form), order="file")
    works = [source.work(number, "candidate") for number in range(3)]
    # rows in which nobody asks are passed over
    assert [work.provenance["row"] for work in works] == [1, 3, 1]
    assert messages(works[0]) == [{"role": "user", "content": "one?"}]
    assert messages(works[1]) == [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert "max_completion_tokens" not in json.loads(works[0].body)
    assert works[0].session is None


def test_all_questions_with_the_servers_answers(open_kind, tmp_path: Path, make_answer) -> None:
    source = open_kind("sharegpt", path=write(tmp_path, [TALK], "array"), turns="all")
    work = source.work(5, "candidate")
    contents = []
    for answer in ("first", "second", "third"):
        contents.append([message["content"] for message in messages(work)])
        assert work.session is not None and work.session.turns == 3
        following = source.follow_up(work, make_answer(answer))
        assert following is not None or work.session.is_last
        work = following or work
    assert contents == [["one?"], ["one?", "first", "two?"], ["one?", "first", "two?", "second", "three?"]]


def test_sessions_may_be_shortened_and_end_early(open_kind, tmp_path: Path, make_answer) -> None:
    source = open_kind("sharegpt", path=write(tmp_path, [TALK], "array"), turns="all", most_turns=2)
    work = source.work(5, "candidate")
    assert session_end(work, make_answer("")) == "no_text"
    assert source.follow_up(work, make_answer("")) is None
    second = source.follow_up(work, make_answer("x"))
    assert second is not None
    assert source.follow_up(second, make_answer("x")) is None


@pytest.mark.parametrize(("dialect", "ignores"), [("sglang", True), ("openai", None)])
def test_recorded_lengths(open_kind, tmp_path: Path, make_answer, dialect: str, ignores: bool | None) -> None:
    path = write(tmp_path, [TALK], "array")
    source = open_kind("sharegpt", {"dialect": dialect}, path=path, turns="all", has_recorded_lengths=True)
    work = source.work(0, "candidate")
    body = json.loads(work.body)
    # 40 bytes at 4 a token
    assert (body["max_completion_tokens"], body.get("ignore_eos")) == (10, ignores)
    second = source.follow_up(work, make_answer("x"))
    third = source.follow_up(second, make_answer("x"))
    assert json.loads(second.body)["max_completion_tokens"] == 1
    # no answer was recorded to the last question
    assert not {"max_completion_tokens", "ignore_eos"} & set(json.loads(third.body))


@pytest.mark.parametrize("form", ["array", "lines"])
def test_bad_rows(open_kind, tmp_path: Path, form: str) -> None:
    place = "element" if form == "array" else "line"
    with pytest.raises(PlanError, match=f"talks.json: {place} 2 is .*needs a list of turns under conversations"):
        open_kind("sharegpt", path=write(tmp_path, [TALK, {"text": "x"}], form))
    with pytest.raises(PlanError, match="no row of it can be sent"):
        open_kind("sharegpt", path=write(tmp_path, [said(("gpt", "x")), said(("human", " "))], form))
