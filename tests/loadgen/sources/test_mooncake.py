"""Traces in Mooncake's form: lengths, and beginnings that repeat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdwatch.loadgen import PlanError


def row(length: int, hash_ids: list[int], output: int = 5) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": length, "output_length": output, "hash_ids": hash_ids}


def prompts(source, count: int) -> list[list[str]]:
    bodies = [json.loads(source.work(number, "candidate").body) for number in range(count)]
    return [body["messages"][0]["content"].split(" ") for body in bodies]


def test_lengths_and_shared_blocks(open_kind, write_lines) -> None:
    path = write_lines([row(1100, [1, 2, 3]), row(1024, [1, 2]), row(1024, [1, 9]), row(3, [1])])
    source = open_kind("mooncake", path=path)
    found = prompts(source, 4)
    # the code at the end stands for ten words
    assert [len(words) for words in found] == [1100 - 9, 1024 - 9, 1024 - 9, 3]
    first, second, third, short = found
    assert first[:1014] == second[:1014]
    assert first[:512] == third[:512]
    assert first[512:520] != third[512:520]
    assert short == first[:3]
    work = source.work(16_0_0_000001, "candidate")
    assert work.provenance["row"] == 2
    assert work.task is not None
    assert json.loads(work.body)["messages"][0]["content"].endswith(f" {work.task.nonce}")
    assert json.loads(work.body)["max_completion_tokens"] == 5


def test_what_can_be_set(open_kind, write_lines) -> None:
    path = write_lines([row(100, [4, 5, 6, 7]), row(4000, [4]), {"input_length": 20, "output_length": 1}])
    source = open_kind("mooncake", path=path, block_tokens=30, most_input_tokens=1000, max_tokens=9, ignore_eos=True)
    assert [len(words) for words in prompts(source, 3)] == [91, 991, 20]
    body = json.loads(source.work(0, "candidate").body)
    assert (body["max_completion_tokens"], body["ignore_eos"]) == (9, True)
    with pytest.raises(PlanError, match="ignore_eos is an extension"):
        open_kind("mooncake", {"dialect": "openai"}, path=path, ignore_eos=True)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (7, "is 7; each line must be one JSON object"),
        (row(0, []), "input_length is 0; give a number of tokens"),
        ({**row(5, []), "output_length": True}, "output_length is True"),
        ({"input_length": 5}, "output_length is None"),
        (row(10**12, []), "input_length is 1000000000000"),
        ({**row(5, []), "hash_ids": ["a"]}, r"hash_ids is \['a'\]; give a list of numbers"),
        ({**row(5, []), "hash_ids": None}, "hash_ids is None"),
    ],
)
def test_bad_lines(open_kind, write_lines, line: Any, complaint: str) -> None:
    with pytest.raises(PlanError, match=f"rows.jsonl: line 2 {complaint}"):
        open_kind("mooncake", path=write_lines([row(5, [1]), line]))
