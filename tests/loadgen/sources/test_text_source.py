"""Prose: its length, its code, and the fields of both endpoints."""

from __future__ import annotations

import json

import pytest

from pdwatch.loadgen.sources.prose import PARAGRAPH_WORDS, WORDS


def test_words_are_distinct_and_plain() -> None:
    assert len(WORDS) == len(set(WORDS)) == 256
    assert all(word.isascii() and word.islower() and word.isalpha() for word in WORDS)


@pytest.mark.parametrize("words", [8, PARAGRAPH_WORDS, 200, 10_000])
def test_prompts_have_their_words(open_kind, words: int) -> None:
    source = open_kind("text", fewest_words=words, most_words=words)
    works = [source.work(number, "candidate") for number in range(20)]
    for work in works:
        content = json.loads(work.body)["messages"][0]["content"]
        text, _, ask = content.partition("\n")
        assert len(text.split()) == words
        assert work.task is not None
        assert work.task.nonce in ask
        assert (work.task.expected_calls, work.task.expected_text) == ((), None)
    assert len({work.body for work in works}) == 20
    assert source.work(3, "candidate") == works[3]


def test_chat_bodies(open_kind) -> None:
    body = json.loads(open_kind("text", min_tokens=200, ignore_eos=True).work(1, "candidate").body)
    # at least as many tokens as must come
    assert (body["max_completion_tokens"], body["min_tokens"], body["ignore_eos"]) == (200, 200, True)
    plain = json.loads(open_kind("text").work(1, "candidate").body)
    assert plain["max_completion_tokens"] == 128
    assert not {"min_tokens", "ignore_eos", "tools"} & set(plain)


def test_completions(open_kind) -> None:
    source = open_kind("text", endpoint="completions", shared_prefix={"groups": 1, "tokens": 64}, max_tokens=5)
    work = source.work(1, "candidate")
    body = json.loads(work.body)
    assert work.path == "/v1/completions"
    assert work.task is None
    assert body["prompt"].startswith("Handbook ")
    assert body["max_tokens"] == 5
    assert body["stream_options"] == {"include_usage": True}


def test_over_long(open_kind) -> None:
    source = open_kind("text", over_long_share=0.5, context_tokens=300, fewest_words=8, most_words=8)
    works = [source.work(number, "candidate") for number in range(40)]
    over_long = [work for work in works if work.provenance.get("expects") == "http_error"]
    assert 5 < len(over_long) < 35
    assert all(len(work.body.split()) > 300 and work.task is None for work in over_long)
