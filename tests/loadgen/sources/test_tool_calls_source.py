"""The tool-call source: what must never change, and each kind of its mix."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import jsonschema
import pytest

from pdwatch.loadgen.sources import Work
from pdwatch.loadgen.sources.tool_calls import RULES

NUMBERS = range(16_0_0_000000, 16_0_0_000400)
EMBEDDED_CONTEXT = 2048


def sent(work: Work) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(work.body)
    return body


def system(work: Work) -> str:
    first = sent(work)["messages"][0]
    return str(first["content"]) if first["role"] == "system" else ""


def question(work: Work) -> str:
    return str(sent(work)["messages"][-1]["content"])


def test_the_plain_source_sends_what_it_always_sent(open_kind) -> None:
    source = open_kind("tool_calls")
    digest = hashlib.sha256()
    for number in [*range(300), *range(16_0_0_000000, 16_0_0_000100)]:
        digest.update(source.work(number, "candidate").body)
    # of the bodies that the embedded model was taught on and the first gate measured with.
    assert digest.hexdigest() == "6fb1a4439f04860d7558a8efa75715eb94a963b09cea3561f49a742d7c9bf34c"


MIXED = {
    "streamed_share": 0.7,
    "tools_share": 0.8,
    "over_long_share": 0.1,
    "context_tokens": EMBEDDED_CONTEXT,
    "has_rules": True,
    "shared_prefix": {"share": 0.6, "groups": 3, "tokens": 40},
    "long_context": {"share": 0.3, "fewest_tokens": 200, "most_tokens": 900},
    "sessions": {"share": 0.5, "fewest_turns": 2, "most_turns": 3},
}


def test_arms_differ_in_the_nonce_alone(open_kind) -> None:
    source, again = open_kind("tool_calls", **MIXED), open_kind("tool_calls", **MIXED)
    for number in NUMBERS:
        one, other = source.work(number, "candidate"), source.work(number, "baseline")
        assert one == again.work(number, "candidate")
        assert one.provenance == other.provenance
        if one.task is None or other.task is None:
            assert one == other
        else:
            assert one.task.nonce != other.task.nonce
            assert one.body == other.body.replace(other.task.nonce.encode(), one.task.nonce.encode())


def test_shares(open_kind) -> None:
    works = [open_kind("tool_calls", **MIXED).work(number, "candidate") for number in NUMBERS]
    usual = [work for work in works if work.task is not None]

    def share(count: int) -> float:
        return count / len(works)

    # 400 draws: four standard deviations are at most 4 · √(0.25 / 400) = 0.1
    assert share(sum(work.is_streamed for work in works)) == pytest.approx(0.7, abs=0.1)
    assert share(len(works) - len(usual)) == pytest.approx(0.1, abs=0.1)
    assert share(sum("tools" in sent(work) for work in works)) == pytest.approx(0.9 * 0.8, abs=0.1)
    assert share(sum("prefix_group" in work.provenance for work in works)) == pytest.approx(0.9 * 0.6, abs=0.1)
    assert share(sum("context_tokens" in work.provenance for work in works)) == pytest.approx(0.9 * 0.3, abs=0.1)
    turns = Counter(work.session.turns for work in works if work.session is not None)
    assert share(turns.total()) == pytest.approx(0.9 * 0.5, abs=0.1)
    assert set(turns) == {2, 3}


def test_one_share_moves_no_other(open_kind) -> None:
    fewer = open_kind("tool_calls", **MIXED)
    more = open_kind("tool_calls", **{**MIXED, "streamed_share": 0.1, "sessions": None})
    for number in NUMBERS:
        one, other = fewer.work(number, "candidate"), more.work(number, "candidate")
        assert one.task == other.task
        assert one.is_streamed >= other.is_streamed


def test_whole_answers(open_kind) -> None:
    work = open_kind("tool_calls", streamed_share=0).work(1, "candidate")
    assert sent(work)["stream"] is False
    assert "stream_options" not in sent(work)
    assert (work.is_streamed, work.promises_usage) == (False, True)
    assert sent(open_kind("tool_calls", max_tokens=9).work(1, "candidate"))["max_completion_tokens"] == 9


def test_without_tools_a_plain_answer_is_known(open_kind) -> None:
    work = open_kind("tool_calls", tools_share=0).work(3, "candidate")
    assert work.task is not None
    assert not {"tools", "tool_choice"} & set(sent(work))
    assert work.task.tools == ()
    assert question(work).endswith(f"Please say {work.task.expected_text}.")
    assert work.provenance["family"] == work.task.family == "plain"


def test_over_long_prompts_exceed_any_tokenizer(open_kind) -> None:
    source = open_kind("tool_calls", over_long_share=1, context_tokens=EMBEDDED_CONTEXT)
    words = [len(question(source.work(number, "candidate")).split()) for number in range(50)]
    # a word is at least one token: 2 % to 50 % over the context of 2,048
    assert min(words) > 2088
    assert max(words) <= 3073
    work = source.work(0, "candidate")
    assert work.task is None
    assert work.provenance["expects"] == "http_error"


def test_rules_and_prefixes_stand_first(open_kind) -> None:
    source = open_kind("tool_calls", has_rules=True, shared_prefix={"groups": 4, "tokens": 640})
    systems: dict[Any, set[str]] = {}
    for number in range(80):
        work = source.work(number, "candidate")
        systems.setdefault(work.provenance["prefix_group"], set()).add(system(work))
    assert sorted(systems) == [0, 1, 2, 3]
    # one text a group, with the groups apart from the beginning
    assert all(len(texts) == 1 for texts in systems.values())
    texts = [text for (text,) in systems.values()]
    assert len({text[:20] for text in texts}) == 4
    assert all(text.endswith("\n" + RULES) for text in texts)
    # 640 tokens of prose are ten paragraphs of 59 words, and two words of title
    assert {len(text.partition("\n")[0].split()) for text in texts} == {592}


@pytest.mark.parametrize(("tokens", "bytes_per_token"), [(4096, 4.97), (131_072, 4.97), (900, 1.0)])
def test_long_contexts_have_their_length(open_kind, tokens: int, bytes_per_token: float) -> None:
    context = {"share": 1, "fewest_tokens": tokens, "most_tokens": tokens}
    source = open_kind("tool_calls", long_context=context, bytes_per_token=bytes_per_token)
    text = question(source.work(5, "candidate")).rpartition("\n")[0]
    # four records of 43 bytes, a title of 12, and the spaces between
    assert len(text.encode()) == pytest.approx(tokens * bytes_per_token + 190, rel=0.01, abs=30)


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_the_needle_stands_where_it_is_said_to(open_kind, depth: float) -> None:
    context = {"share": 1, "fewest_tokens": 8192, "most_tokens": 8192, "needle_depth": depth}
    source = open_kind("tool_calls", long_context=context)
    for number in range(20):
        work = source.work(number, "candidate")
        assert work.task is not None
        text, _, asked = question(work).rpartition("\n")
        assert text.count(work.task.nonce) == 1
        assert work.task.nonce not in asked
        assert text.index(work.task.nonce) / len(text) == pytest.approx(depth, abs=0.02)
        (record,) = [
            sentence.partition("The code of record ")[2].split(" ")[0]
            for sentence in text.split(". ")
            if work.task.nonce in sentence
        ]
        assert f"the code of record {record}" in asked
        assert work.provenance["needle_depth"] == f"{depth:.3f}"
        answer = work.task.expected_text or json.dumps(work.task.expected_calls[0].arguments)
        assert work.task.nonce in answer


def test_long_contexts_share_no_beginning(open_kind) -> None:
    context = {"share": 1, "fewest_tokens": 4096, "most_tokens": 4096}
    source = open_kind("tool_calls", long_context=context)
    texts = [question(source.work(number, "candidate")) for number in range(100)]
    assert len({text[:16] for text in texts}) == 100


@pytest.mark.parametrize("family", ["distractors", "parallel", "deep", "irrelevance"])
def test_families_for_general_models(open_kind, family: str) -> None:
    source = open_kind("tool_calls", {"workload": {"families": {family: 1}, "most_answer_bytes": 600}})
    for number in range(150):
        task = source.work(number, "candidate").task
        assert task is not None and task.family == family
        names = [tool["function"]["name"] for tool in task.tools]
        parameters = dict(zip(names, (tool["function"]["parameters"] for tool in task.tools), strict=True))
        assert len(parameters) == len(names) <= 8
        for call in task.expected_calls:
            jsonschema.validate(call.arguments, parameters[call.name])
            assert list(call.arguments) == parameters[call.name]["required"]
        assert str(task.messages[0]["content"]).count(task.nonce) == 1
        if family == "distractors":
            (call,) = task.expected_calls
            verb, _, noun = call.name.partition("_")
            assert len(names) >= 3
            assert len({json.dumps(schema) for schema in parameters.values()}) == 1
            assert any(verb in name or noun in name for name in names if name != call.name)
        elif family == "parallel":
            assert len(task.expected_calls) >= 2
            assert len({call.name for call in task.expected_calls}) == 1
        elif family == "deep":
            (call,) = task.expected_calls
            outer = [value for value in call.arguments.values() if isinstance(value, dict)]
            assert any(isinstance(inner, dict) for value in outer for inner in value.values())
        else:
            assert task.expected_calls == ()
            assert task.expected_text == f"no tool fits {task.nonce}"
