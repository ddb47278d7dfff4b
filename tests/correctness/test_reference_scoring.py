"""The reference over real HTTP on loopback: what it is asked, what it may answer, and what happens when it fails."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdwatch.correctness import (
    NotStored,
    OwnAnswer,
    Reference,
    ReferenceMismatch,
    ReferenceRefused,
    ReferenceUnavailable,
    ScoreJournal,
    StoredReference,
    read_facts,
)

STREAMS = Path(__file__).parents[1] / "data" / "sglang" / "streams"
PROMPT = [256, 104, 105, 260]
ANSWER = [111, 107, 257]
INFO = {"model_path": "tiny", "weight_version": "default", "architectures": ["Tiny"], "model_type": "tiny"}


def canned(answer: list[int], argmax: list[int]) -> dict[str, Any]:
    """SGLang's response: at each position the argmax at −0.1 nats and, where it differs, the token at −2.1."""
    chosen: list[Any] = [[None, PROMPT[-1], None]]
    top: list[Any] = [None]
    for token, best in zip(answer, argmax, strict=True):
        chosen.append([-0.1 if token == best else -2.1, token, None])
        top.append([[-0.1, best, None], [-2.1, token if token != best else 7, None]])
    return {"text": "", "meta_info": {"input_token_logprobs": chosen, "input_top_logprobs": top}}


@dataclass
class FakeServer:
    """An SGLang server whose answers are set by the test."""

    url: str = ""
    info: Any = field(default_factory=lambda: dict(INFO))
    status: int = 200
    answer: Callable[[dict[str, Any]], bytes] = lambda body: json.dumps(canned(ANSWER, ANSWER)).encode()
    drop_connections: int = 0
    refuses_logprobs: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, json.dumps(fake.info if self.path == "/model_info" else {"version": "0.5.23"}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.asked.append(body)
            fake.paths.append(self.path)
            fake.headers.append({name.lower(): value for name, value in self.headers.items()})
            if fake.drop_connections:
                fake.drop_connections -= 1
                self.close_connection = True
                return
            if fake.refuses_logprobs and "logprobs" in body:
                self._send(422, b'{"error": "logprobs are off"}')
                return
            self._send(fake.status, fake.answer(body))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                # the client stops reading an answer that is too long.
                self.close_connection = True

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        fake.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield fake
        http.shutdown()
        thread.join()


@pytest.fixture
def journal(tmp_path) -> Iterator[ScoreJournal]:
    with ScoreJournal(tmp_path / "reference.jsonl.zst") as opened:
        yield opened


@pytest.fixture
def reference(server, journal, monkeypatch) -> Iterator[Reference]:
    monkeypatch.setattr("pdwatch.correctness.reference.RETRY_PAUSE_SECONDS", 0)
    with Reference(server.url, journal, timeout_seconds=10) as opened:
        yield opened


def test_it_asks_for_teacher_forcing_from_the_last_prompt_token(reference, server):
    reference.score(PROMPT, ANSWER)
    assert server.asked == [
        {
            "input_ids": PROMPT + ANSWER,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 3,
            "top_logprobs_num": 20,
        }
    ]


def test_scores_are_read_position_by_position(reference, server):
    server.answer = lambda body: json.dumps(canned(ANSWER, [111, 99, 257])).encode()
    first, second, third = reference.score(PROMPT, ANSWER).positions
    assert (first.argmax, first.delta_nats, first.rank) == (111, 0.0, 1)
    # −0.1 − (−2.1) = 2 nats below the reference's own choice.
    assert (second.argmax, second.delta_nats, second.rank) == (99, pytest.approx(2.0), 2)
    assert third.token == 257


def test_a_token_of_probability_zero_comes_as_null(reference, server):
    server.answer = changed(lambda meta: meta["input_token_logprobs"][1].__setitem__(0, None))
    assert reference.score(PROMPT, ANSWER).positions[0].delta_nats == pytest.approx(1e9)


def test_the_same_tokens_are_scored_once_and_stay_in_the_journal(reference, server, journal):
    live = reference.score(PROMPT, ANSWER)
    assert reference.score(PROMPT, ANSWER) == live
    assert len(server.asked) == 1
    assert (reference.statistics.scored, reference.statistics.reused) == (1, 1)
    assert StoredReference(journal).score(PROMPT, ANSWER) == live
    with pytest.raises(NotStored, match="no score"):
        StoredReference(journal).score(PROMPT, [1])


def test_a_bearer_token_is_sent_and_never_stored(server, journal):
    with Reference(server.url, journal, bearer_token="secret") as opened:
        opened.score(PROMPT, ANSWER)
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert "secret" not in json.dumps(dict(journal.facts))


def test_transport_errors_are_retried_and_counted(reference, server):
    server.drop_connections = 2
    reference.score(PROMPT, ANSWER)
    assert reference.statistics.transport_retries == 2
    assert len(server.asked) == 3


def test_a_reference_that_is_gone_is_not_asked_again(reference, server):
    server.drop_connections = 3
    with pytest.raises(ReferenceUnavailable, match="after 3 attempts"):
        reference.score(PROMPT, ANSWER)
    with pytest.raises(ReferenceUnavailable, match="after 3 attempts"):
        reference.score(PROMPT, [1])
    assert len(server.asked) == 3


def test_a_refusal_concerns_one_request_only(reference, server):
    server.status, server.answer = 400, lambda body: b'{"error": "the input is too long"}'
    with pytest.raises(ReferenceRefused, match=r"HTTP 400.*too long"):
        reference.score(PROMPT, ANSWER)
    server.status, server.answer = 200, lambda body: json.dumps(canned(ANSWER, ANSWER)).encode()
    assert len(reference.score(PROMPT, ANSWER).positions) == 3
    assert (reference.statistics.refused, reference.statistics.transport_retries) == (1, 0)


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], bytes]:
    def answer(body: dict[str, Any]) -> bytes:
        payload = canned(ANSWER, ANSWER)
        change(payload["meta_info"])
        return json.dumps(payload).encode()

    return answer


SHAPES = {
    "no JSON": lambda body: b"<html>",
    "an empty object": lambda body: b"{}",
    "a list": lambda body: b"[]",
    "too few positions": changed(lambda meta: meta["input_token_logprobs"].pop()),
    "other tokens than sent": changed(lambda meta: meta["input_token_logprobs"][1].__setitem__(1, 99)),
    "no top tokens": changed(lambda meta: meta["input_top_logprobs"].__setitem__(1, [])),
    "a null row": changed(lambda meta: meta["input_top_logprobs"].__setitem__(1, None)),
    "a positive log-probability": changed(lambda meta: meta["input_token_logprobs"][1].__setitem__(0, 3.5)),
    "NaN": changed(lambda meta: meta["input_token_logprobs"][1].__setitem__(0, math.nan)),
    "text for a token": changed(lambda meta: meta["input_top_logprobs"][1][0].__setitem__(1, "7")),
    "true for a log-probability": changed(lambda meta: meta["input_token_logprobs"][1].__setitem__(0, True)),
    "ten megabytes": lambda body: b'{"text": "' + b"x" * 10_000_000 + b'"}',
    "nested without end": lambda body: b"[" * 500_000,
}


@pytest.mark.parametrize("answer", SHAPES.values(), ids=SHAPES.keys())
def test_an_answer_of_another_shape_is_no_reference(answer, reference, server):
    server.answer = answer
    with pytest.raises(ReferenceUnavailable) as caught:
        reference.score(PROMPT, ANSWER)
    assert len(str(caught.value)) < 600
    assert reference.statistics.scored == 0


def test_nobody_listening(journal):
    with pytest.raises(ReferenceUnavailable, match="start it or check the address"):
        Reference("http://127.0.0.1:9", journal)


def test_another_model_is_refused_with_the_fields_named(server, journal):
    with httpx.Client(trust_env=False) as client:
        candidate = read_facts(client, server.url)
    server.info = {**INFO, "model_path": "other", "architectures": ["Other"]}
    with pytest.raises(ReferenceMismatch, match="model_path is other there and tiny in the candidate") as caught:
        Reference(server.url, journal, candidate=candidate)
    assert caught.value.fields == ("model_path", "architectures")


@pytest.mark.parametrize(
    ("candidate_hash", "refused"), [("a" * 64, ()), ("b" * 64, ("weights_sha256",))], ids=["same hash", "other hash"]
)
def test_a_hash_decides_over_a_path(candidate_hash, refused, server, journal):
    server.info = {**INFO, "weights_sha256": candidate_hash, "model_path": "/mnt/a"}
    with httpx.Client(trust_env=False) as client:
        candidate = read_facts(client, server.url)
    server.info = {**INFO, "weights_sha256": "a" * 64, "model_path": "/mnt/b"}
    if refused:
        with pytest.raises(ReferenceMismatch) as caught:
            Reference(server.url, journal, candidate=candidate)
        assert caught.value.fields == refused
    else:
        Reference(server.url, journal, candidate=candidate).close()


def test_a_journal_of_another_reference_is_refused(server, journal):
    Reference(server.url, journal).close()
    server.info = {**INFO, "weight_version": "step-2000"}
    with pytest.raises(ReferenceMismatch, match="weight_version is step-2000 there and default in"):
        Reference(server.url, journal)


SENT = json.dumps(
    {"model": "m", "messages": [], "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
)
PLAIN = {"model": "m", "messages": [], "temperature": 0, "stream": False}


def position(*logprobs: float | None) -> dict[str, Any]:
    tops = [{"token": f"t{index}", "bytes": None, "logprob": value} for index, value in enumerate(logprobs)]
    return {"token": "t0", "bytes": None, "logprob": logprobs[0], "top_logprobs": tops}


def completion(logprobs: Any = None, **message: Any) -> bytes:
    """A chat completion in one piece, as SGLang sends it."""
    call = {"id": "call_1", "index": 0, "type": "function", "function": {"name": "record", "arguments": '{"a": 1}'}}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": [call], **message},
        "logprobs": logprobs,
        "finish_reason": "tool_calls",
    }
    return json.dumps({"id": "r1", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()


# likeliest minus second: 2.9, 0.25 and about 1e9 for a second token of probability zero.
TOLD = {"content": [position(-0.1, -3.0), position(-0.5, -0.75, -4.0), position(0.0, None)]}
RECORD = (("record", '{"a": 1}'),)


def test_it_is_asked_for_the_same_completion_in_one_piece_with_logprobs(reference, server):
    server.answer = lambda body: completion(TOLD)
    assert reference.own_answer(SENT) == OwnAnswer("", RECORD, 0.25)
    assert server.asked == [{**PLAIN, "logprobs": True, "top_logprobs": 20}]
    assert server.paths == ["/v1/chat/completions"]
    assert reference.statistics.answered == 1


def test_an_own_answer_is_asked_for_once_and_stays_in_the_journal(reference, server, journal):
    server.answer = lambda body: completion(TOLD)
    live = reference.own_answer(SENT)
    assert reference.own_answer(SENT) == live
    assert len(server.asked) == 1
    assert StoredReference(journal).own_answer(SENT) == live
    with pytest.raises(NotStored, match="no answer to this request"):
        StoredReference(journal).own_answer("{}")


def test_a_server_that_refuses_logprobs_is_asked_without_them_from_then_on(reference, server):
    server.refuses_logprobs, server.answer = True, lambda body: completion()
    assert reference.own_answer(SENT) == OwnAnswer("", RECORD, None)
    reference.own_answer('{"model": "n"}')
    assert ["logprobs" in body for body in server.asked] == [True, False, False]
    assert reference.statistics.refused == 0


def test_a_request_refused_either_way_concerns_itself_only(reference, server):
    server.status, server.answer = 400, lambda body: b'{"error": "the input is too long"}'
    with pytest.raises(ReferenceRefused, match=r"refused to answer \(HTTP 400\).*too long"):
        reference.own_answer(SENT)
    server.status, server.answer = 200, lambda body: completion(TOLD)
    assert reference.own_answer(SENT).margin_nats == 0.25
    assert (len(server.asked), reference.statistics.refused) == (3, 1)


def test_the_margin_of_a_recorded_answer(reference, server):
    server.answer = lambda body: (STREAMS / "chat_plain_logprobs.body").read_bytes()
    # of its four positions the second is the closest: −5.291356 − (−5.346043) = 0.0547
    answer = reference.own_answer(SENT)
    assert (answer.content, answer.calls) == ("#\ufffd\x013", ())
    assert answer.margin_nats == pytest.approx(0.0547, abs=2e-5)


MARGINS: dict[str, tuple[Any, float | None]] = {
    "no logprobs": (None, None),
    "an empty list": ({"content": []}, None),
    "null for a list": ({"content": None}, None),
    "the emitted token only": ({"content": [position(-0.1, -3.0), position(-0.1)]}, None),
    "an exact tie": ({"content": [position(-0.7, -0.7)]}, 0.0),
    "not in order": ({"content": [position(-3.0, -1.0)]}, 2.0),
}


@pytest.mark.parametrize(("logprobs", "margin_nats"), MARGINS.values(), ids=MARGINS.keys())
def test_the_smallest_margin(logprobs, margin_nats, reference, server):
    server.answer = lambda body: completion(logprobs)
    assert reference.own_answer(SENT).margin_nats == margin_nats


def test_half_a_surrogate_pair_can_be_stored(reference, server, journal):
    server.answer = lambda body: completion(content="\ud83d", tool_calls=None)
    assert reference.own_answer(SENT).content == "\ufffd"
    assert StoredReference(journal).own_answer(SENT).content == "\ufffd"


NO_COMPLETION = {
    "no JSON": b"<html>",
    "an empty object": b"{}",
    "a list": b"[]",
    "no choice": b'{"choices": []}',
    "an error in band": b'{"error": {"message": "out of memory"}}',
    "text for a log-probability": completion({"content": [position("x", -1.0)]}),  # type: ignore[arg-type]  # what a server might send
    "NaN": completion({"content": [position(math.nan, -1.0)]}),
    "a list for logprobs": completion([1]),
    "a number for a position": completion({"content": [7]}),
    "two megabytes": b'{"x": "' + b"x" * 2_000_000 + b'"}',
    "nested without end": b"[" * 500_000,
}


@pytest.mark.parametrize("body", NO_COMPLETION.values(), ids=NO_COMPLETION.keys())
def test_what_is_no_completion_is_no_reference(body, reference, server, monkeypatch):
    monkeypatch.setattr("pdwatch.correctness.reference._CHAT_BYTES", 1_000_000)
    server.answer = lambda asked: body
    with pytest.raises(ReferenceUnavailable) as caught:
        reference.own_answer(SENT)
    assert len(str(caught.value)) < 600
    # nothing more is asked of it, by whichever question.
    with pytest.raises(ReferenceUnavailable):
        reference.score(PROMPT, ANSWER)
    assert len(server.asked) == 1
