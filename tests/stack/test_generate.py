"""/generate: requests, and answers in the recorded shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdwatch.stack.embedded.collector import WorkerFacts
from pdwatch.stack.embedded.metrics import WorkerMetrics
from pdwatch.stack.embedded.request import FinishReason, Output, TokenLogprob
from pdwatch.stack.embedded.server.generate import GeneratedAnswer, parse_generate
from pdwatch.stack.embedded.server.outputs import OutputStream, RequestFailed

DATA = Path(__file__).parent.parent / "data" / "sglang"


def answer_to(body: dict[str, Any], *outputs: Output) -> GeneratedAnswer:
    facts = WorkerFacts("m", "unified", 64, 64, 2, 64, 0.0, 0.0, 0.0, 0.0, None)
    generate = parse_generate(body, 64)
    stream = OutputStream(generate.request, WorkerMetrics(facts, lambda: pytest.fail("nobody scrapes")))
    answer = GeneratedAnswer(generate, stream)
    for output in outputs:
        stream.deliver(output, stream.created + 1.0)
        answer.add(output)
    return answer


def output(tokens: list[int], finish: FinishReason | None = None, **fields: Any) -> Output:
    defaults: dict[str, Any] = {"logprobs": None, "prompt_logprobs": None, "cached_tokens": 0}
    return Output("r", tokens, finish=finish, running_batch=1, num_retractions=0, **(defaults | fields))


def test_teacher_forcing_has_the_recorded_shape() -> None:
    recorded = json.loads((DATA / "streams" / "generate_score.body").read_bytes())
    ids = [10, 11, 12, 108, 111, 32, 119, 111]
    scored: list[TokenLogprob | None] = [None]
    scored += [TokenLogprob(token, -0.5, top=((-0.5, token), (-2.0, 7))) for token in ids[4:]]
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 3,
        "top_logprobs_num": 2,
    }
    written = answer_to(body, output([], FinishReason("length"), logprobs=[], prompt_logprobs=scored)).body()
    meta, expected = written["meta_info"], recorded["meta_info"]
    # SGLang also reports clocks of parts this server does not have.
    clocks = {"forward_entry_time", "prefill_finished_time", "queue_time", "api_server_dispatch_finish_ts"}
    assert meta.keys() == expected.keys() - clocks
    assert written.keys() == recorded.keys()
    assert [entry[1] for entry in meta["input_token_logprobs"]] == [
        entry[1] for entry in expected["input_token_logprobs"]
    ]
    assert meta["input_token_logprobs"][0] == expected["input_token_logprobs"][0] == [None, 108, None]
    assert meta["input_token_logprobs"][1] == [-0.5, 111, None]
    assert meta["input_top_logprobs"][:2] == [None, [[-0.5, 111, None], [-2.0, 7, None]]]
    assert meta["output_token_logprobs"] == []
    assert meta["finish_reason"] == expected["finish_reason"] == {"type": "length", "length": 0}


def test_a_stream_repeats_all_that_came_before() -> None:
    lines = (DATA / "streams" / "generate_stream.body").read_bytes().split(b"\n\n")
    first = json.loads(lines[0].removeprefix(b"data: "))
    answer = answer_to({"text": "abcde", "stream": True}, output([83]))
    written = answer.body()
    clocks = {"forward_entry_time", "prefill_finished_time", "queue_time", "response_sent_to_client_ts"}
    assert written["meta_info"].keys() == first["meta_info"].keys() - clocks
    assert (written["text"], written["output_ids"]) == (first["text"], [83])
    answer.add(output([0xC3], None))
    assert answer.body()["text"] == "S"
    answer.add(output([0xA9, 257], FinishReason("stop", matched=257)))
    assert answer.complete
    assert (answer.body()["text"], answer.body()["output_ids"]) == ("Sé", [83, 0xC3, 0xA9, 257])
    assert answer.body()["meta_info"]["finish_reason"] == {"type": "stop", "matched": 257}


def test_every_recorded_router_body_is_accepted() -> None:
    for name in ("prefill", "decode"):
        lines = [json.loads(line) for line in (DATA / f"router_to_{name}.jsonl").read_text().splitlines()]
        body = next(line["body"] for line in lines if line["path"] == "/generate" and line["kind"] == "req")
        generate = parse_generate(body, 64)
        assert generate.request.prompt_ids == [1, 2]
        assert (generate.request.logprob_start, generate.request.top_logprobs) == (0, 2)
        assert generate.request.token_ids_logprob == (5, 6)
        assert generate.request.room == body["bootstrap_room"]


def test_without_a_start_no_prompt_token_is_scored() -> None:
    body = {"input_ids": [1, 2], "return_logprob": True, "logprob_start_len": -1}
    assert parse_generate(body, 999).request.logprob_start is None


@pytest.mark.parametrize("name", ["seed", "sampling_seed"])
def test_a_seed_has_two_names(name: str) -> None:
    assert parse_generate({"text": "a", "sampling_params": {name: 11}}, 64).request.sampling.seed == 11


def test_as_many_tokens_as_the_vocabulary_has_may_be_asked_about() -> None:
    body = {"text": "a", "return_logprob": True, "token_ids_logprob": [7] * 272}
    assert len(parse_generate(body, 64).request.token_ids_logprob) == 272


REFUSED = {
    "more chosen than tokens": ({"text": "a", "return_logprob": True, "token_ids_logprob": [7] * 273}, "at most 272"),
    "more stops than tokens": ({"text": "a", "sampling_params": {"stop_token_ids": [7] * 273}}, "at most 272"),
    "sampling_seed of text": ({"text": "a", "sampling_params": {"sampling_seed": "x"}}, "sampling_seed must be"),
    "nothing": ({}, "Either text or input_ids"),
    "both": ({"text": "a", "input_ids": [1]}, "Either text or input_ids"),
    "empty": ({"input_ids": []}, "prompt is empty"),
    "beyond the vocabulary": ({"input_ids": [272]}, "0 to 271"),
    "batch": ({"input_ids": [[1], [2]]}, "list of token ids"),
    "batch of parameters": ({"text": "a", "sampling_params": [{}]}, "batch of requests"),
    "start beyond the prompt": ({"input_ids": [1], "return_logprob": True, "logprob_start_len": 1}, "from -1 to 0"),
    "too long": ({"input_ids": [1] * 64}, "longer than the model's context length (64 tokens)"),
    "regex": ({"text": "a", "sampling_params": {"regex": "a+"}}, "regex=a+"),
}


@pytest.mark.parametrize(("body", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_honoured_is_refused_by_name(body: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestFailed) as refusal:
        parse_generate(body, 64)
    assert named in refusal.value.message
