"""Tasks: the promised sizes, shapes, nonces and phrases."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise

import jsonschema
import pytest

from pdwatch.loadgen import WorkloadConfig, make_task, prompt_bytes, words
from pdwatch.loadgen.families import answer_bytes

CONFIG = WorkloadConfig()
TASKS = [make_task(7, number, CONFIG) for number in range(1500)]


def test_same_arguments_same_task() -> None:
    assert make_task(7, 12, CONFIG) == TASKS[12]
    assert make_task(8, 12, CONFIG).messages != TASKS[12].messages


def test_arms_differ_in_the_nonce_alone() -> None:
    for task in TASKS[:100]:
        other = make_task(7, task.number, CONFIG, arm="baseline")
        assert other.nonce != task.nonce
        swapped = json.dumps(other.messages, ensure_ascii=False).replace(other.nonce, task.nonce)
        assert swapped == json.dumps(task.messages, ensure_ascii=False)
        assert other.tools == task.tools


def test_nonces_are_unique_and_planted_once() -> None:
    nonces = {make_task(7, number, CONFIG, arm).nonce for number in range(500) for arm in ("candidate", "baseline")}
    assert len(nonces) == 1000
    for task in TASKS:
        assert re.fullmatch(r"[A-Z0-9]{12}", task.nonce)
        assert task.messages[0]["content"].count(task.nonce) == 1
        answer = task.expected_text if task.expected_text is not None else task.expected_calls[0].arguments.values()
        assert task.nonce in answer
        assert task.planted[0] == task.nonce


def test_sizes() -> None:
    sizes = [prompt_bytes(task) for task in TASKS]
    # past the embedded model's window and top-k of 64 each, within its 2,048 tokens less the answer
    assert min(sizes) >= 200
    assert max(sizes) <= 2008
    assert 430 < sum(sizes) / len(sizes) < 560
    assert max(answer_bytes(task.expected_calls, task.expected_text) for task in TASKS) <= 300


def test_families() -> None:
    counts = Counter(task.family for task in TASKS)
    for family, share in CONFIG.families.items():
        # 1,500 draws: four standard deviations are at most 4 · √(0.25 / 1500) = 0.052
        assert counts[family] / len(TASKS) == pytest.approx(share, abs=0.052)
    for task in TASKS:
        calls = len(task.expected_calls)
        assert calls == {"copy": 1, "nested": 1, "must_not_call": 0}.get(task.family, calls)
        assert task.family != "sequence" or calls in (2, 3)
    nested = [task for task in TASKS if task.family == "nested"]
    assert all(
        any(isinstance(v, dict) or (isinstance(v, list) and isinstance(v[0], list)) for v in values)
        for values in (task.expected_calls[0].arguments.values() for task in nested)
    )


def test_expected_calls_fit_their_schemas() -> None:
    for task in TASKS:
        parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.tools}
        assert len(parameters) == len(task.tools) <= 8
        for call in task.expected_calls:
            jsonschema.validate(call.arguments, parameters[call.name])
            assert list(call.arguments) == parameters[call.name]["required"]


def test_phrases() -> None:
    for task in TASKS:
        content = task.messages[0]["content"]
        filler, _, request = content.rpartition("Please ")
        assert re.fullmatch(r"(?:[a-z]+(?: [a-z]+)*\. )?", filler)
        if task.expected_text is not None:
            assert request == f"say {task.expected_text}."
            continue
        asks = request.removesuffix(".").split(" then ")
        assert len(asks) == len(task.expected_calls)
        for ask, call in zip(asks, task.expected_calls, strict=True):
            name, _, fields = ask.removeprefix("call ").partition(" with ")
            assert name == call.name
            # in any order: what is left after taking each field out is the commas between them
            for field, value in call.arguments.items():
                assert f"{field} = {text(value)}" in fields
                fields = fields.replace(f"{field} = {text(value)}", "", 1)
            assert fields == ", " * (len(call.arguments) - 1)


def text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def test_values_of_every_kind_come_up() -> None:
    values = [value for task in TASKS for call in task.expected_calls for value in call.arguments.values()]
    assert any(type(value) is int and value >= 2**53 for value in values)
    assert any(isinstance(value, str) and not value.isascii() for value in values)
    assert {type(value) for value in values} == {str, int, bool, list, dict}


def test_catalogues_are_shared_as_asked() -> None:
    def most_common(share: float) -> int:
        config = WorkloadConfig(shared_catalogue_share=share, catalogues=2)
        tools = Counter(json.dumps(make_task(7, number, config).tools) for number in range(200))
        return tools.most_common(1)[0][1]

    assert [most_common(share) for share in (0.0,)] == [1]
    assert all(fewer < more for fewer, more in pairwise([most_common(0.0), most_common(0.5), most_common(1.0)]))


def test_made_up_names() -> None:
    def names(share: float) -> set[str]:
        tasks = (make_task(7, number, WorkloadConfig(made_up_share=share)) for number in range(50))
        return {tool["function"]["name"] for task in tasks for tool in task.tools}

    listed, made_up = names(0.0), names(1.0)
    assert listed <= {f"{verb}_{noun}" for verb in words.VERBS for noun in words.NOUNS}
    assert len(made_up) > 40
    assert not made_up & listed


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            {"families": {"copy": 0}},
            "give at least one of copy, sequence, nested, must_not_call, distractors, .* a weight",
        ),
        ({"families": {"poetry": 1}}, "families.poetry"),
        ({"prompt_bands": [{"fewest_bytes": 900, "most_bytes": 300}]}, "ends at 300 bytes before it begins at 900"),
        ({"prompt_bands": [{"fewest_bytes": 100, "most_bytes": 300}]}, "greater than or equal to 200"),
        ({"shared_catalog_share": 1}, "shared_catalog_share"),
    ],
)
def test_bad_configurations(fields, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        WorkloadConfig(**fields)
