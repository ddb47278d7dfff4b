"""The ladder from end to end: one request in, one outcome and signature out."""

from __future__ import annotations

import json
import time

import pytest

from pdwatch.correctness import (
    Judge,
    JudgeSettings,
    NonceIndex,
    NonceOwner,
    Outcome,
    OwnAnswer,
    ReferenceRefused,
    ReferenceUnavailable,
    Scoring,
    Signature,
    judge,
)
from pdwatch.loadgen import Outcome as TransportOutcome

EOS = 257
RIGHT = {"code": "NONCE7Q4X", "count": 9007199254740993, "tags": ["東京", "🚀"]}


def call(**changes):
    return [("record_event", json.dumps({**RIGHT, **changes}, ensure_ascii=False))]


def verdict(exchange, reference=None, tokenizer=None, nonces=None, **settings):
    judged = Judge(nonces or NonceIndex(), tokenizer, reference, JudgeSettings(**settings)).judge(
        exchange.transcript, exchange.assembled
    )
    return judged.outcome, judged.signature


def test_a_right_answer_is_ok_and_the_reference_was_asked(make_exchange, known_reference, tokenizer, right_ids):
    reference = known_reference(right_ids)
    assert verdict(make_exchange(), reference, tokenizer) == (Outcome.OK, None)
    assert reference.asked == [tuple(right_ids)]


def test_suspects_only_spares_the_reference_a_right_answer(make_exchange, known_reference, tokenizer, right_ids):
    reference = known_reference(right_ids)
    assert verdict(make_exchange(), reference, tokenizer, scoring=Scoring.SUSPECTS) == (Outcome.OK, None)
    assert reference.asked == []
    wrong = make_exchange(calls=call(count=5))
    assert verdict(wrong, reference, tokenizer, scoring=Scoring.SUSPECTS) == (Outcome.CORRUPT, Signature.WRONG_VALUE)


WRONG = {
    "wrong integer": (call(count=9007199254740992), Signature.WRONG_VALUE),
    "number as text": (call(count="9007199254740993"), Signature.WRONG_VALUE),
    "one byte of CJK": (call(tags=["東亰", "🚀"]), Signature.WRONG_VALUE),
    "control character": ([("record_event", call()[0][1].replace("NONCE", "NONCE\0"))], Signature.GARBLED),
    "escaped control character": ([("record_event", call()[0][1].replace("NONCE", "NONCE\\u0000"))], Signature.GARBLED),
    "a foreign character in a value": (call(code="NONCE7q4X"), Signature.WRONG_VALUE),
    "a broken word as tool": ([("record_evzzt", call()[0][1])], Signature.GARBLED),
    "words of the prompt as tool": ([("cancel_event", call()[0][1])], Signature.WRONG_VALUE),
    "broken JSON": ([("record_event", call()[0][1].replace('": ', '":: ', 1))], Signature.GARBLED),
    "second call nobody asked for": (call() * 2, Signature.WRONG_VALUE),
    "no call at all": ([], Signature.FIRST_TOKEN),
}


@pytest.mark.parametrize(("calls", "signature"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_answer_the_reference_would_not_give_is_corrupt(
    calls, signature, make_exchange, known_reference, tokenizer, right_ids
):
    exchange = make_exchange(calls=calls)
    reference = known_reference(right_ids, ranked=signature is Signature.WRONG_VALUE)
    assert verdict(exchange, reference, tokenizer) == (Outcome.CORRUPT, signature)


@pytest.mark.parametrize("name", ["wrong integer", "second call nobody asked for", "no call at all"])
def test_a_wrong_answer_the_reference_gives_too_is_the_models(name, make_exchange, known_reference, tokenizer):
    exchange = make_exchange(calls=WRONG[name][0])
    own = tokenizer.answer_ids(None, WRONG[name][0])
    assert verdict(exchange, known_reference(own), tokenizer) == (Outcome.MODEL_ERROR, None)


@pytest.mark.parametrize("name", ["wrong integer", "broken JSON", "no call at all"])
def test_without_a_reference_a_wrong_answer_stays_unscored(name, make_exchange, tokenizer):
    exchange = make_exchange(calls=WRONG[name][0])
    assert verdict(exchange, None, tokenizer) == (Outcome.UNSCORED, None)
    judged = judge(exchange.transcript, exchange.assembled, exchange.task, None, NonceIndex(), tokenizer)
    assert judged.reason == "there is no reference to ask"
    assert judged.findings and judged.difference is not None


def test_a_right_answer_needs_no_reference(make_exchange):
    assert verdict(make_exchange()) == (Outcome.OK, None)


@pytest.mark.parametrize(
    ("gap_nats", "ranked", "outcome"),
    [
        (0.5, True, Outcome.BENIGN_DIVERGENCE),
        (0.51, True, Outcome.CORRUPT),
        (0.5, False, Outcome.CORRUPT),
    ],
    ids=["at the limit", "past the limit", "beyond the top 20"],
)
def test_near_tie(gap_nats, ranked, outcome, make_exchange, known_reference, tokenizer, right_ids):
    reference = known_reference(right_ids, gap_nats=gap_nats, ranked=ranked)
    assert verdict(make_exchange(calls=call(count=5)), reference, tokenizer)[0] is outcome


def test_a_first_token_from_elsewhere(make_task, make_exchange, known_reference, tokenizer):
    task = make_task(text="NONCE7Q4X fjord")
    reference = known_reference(tokenizer.answer_ids("NONCE7Q4X fjord", ()))
    exchange = make_exchange(task, content="hONCE7Q4X fjord")
    judged = Judge(NonceIndex(), tokenizer, reference).judge(exchange.transcript, exchange.assembled)
    assert (judged.outcome, judged.signature) == (Outcome.CORRUPT, Signature.FIRST_TOKEN)
    assert judged.divergence is not None
    assert (judged.divergence.position, judged.divergence.token_text, judged.divergence.reference_text) == (0, "h", "N")


def test_a_first_token_from_elsewhere_before_markup(make_exchange, known_reference, tokenizer, right_ids):
    # the tokens behind the markup cannot be had, and the certain first byte is not CALLS.
    exchange = make_exchange(calls=(), content="h<CALL>record\ufffd", completion_tokens=12)
    assert verdict(exchange, known_reference(right_ids), tokenizer) == (Outcome.CORRUPT, Signature.FIRST_TOKEN)


def test_unrecoverable_tokens_are_not_judged_past_a_near_tie(make_exchange, known_reference, tokenizer, right_ids):
    exchange = make_exchange(calls=WRONG["broken JSON"][0], completion_tokens=40)
    reference = known_reference(right_ids, gap_nats=0.3)
    judged = Judge(NonceIndex(), tokenizer, reference).judge(exchange.transcript, exchange.assembled)
    assert judged.outcome is Outcome.UNSCORED
    assert "near-tie (0.30 nats)" in str(judged.reason)


def test_bytes_lost_inside_a_value(make_exchange, known_reference, tokenizer, right_ids):
    exchange = make_exchange(calls=call(code="NONCE7Q4"), completion_tokens=len(right_ids))
    reference = known_reference(right_ids)
    assert verdict(exchange, reference, tokenizer) == (Outcome.CORRUPT, Signature.LOST_BYTES)
    # the count proves it, so the reference is not asked.
    assert reference.asked == []


def test_bytes_lost_with_the_json_broken(make_exchange, tokenizer, right_ids):
    text = call()[0][1].replace('": ', "", 1)
    exchange = make_exchange(calls=[("record_event", text)], completion_tokens=len(right_ids))
    judged = Judge(NonceIndex(), tokenizer).judge(exchange.transcript, exchange.assembled)
    assert (judged.outcome, judged.signature) == (Outcome.CORRUPT, Signature.LOST_BYTES)
    # the three bytes `": ` are gone.
    assert [finding.evidence for finding in judged.findings if finding.code == "lost_bytes"] == [{"lost_bytes": 3}]


TRANSPORT = {
    TransportOutcome.TRUNCATED: (Outcome.CORRUPT, Signature.TRUNCATED),
    TransportOutcome.EMPTY: (Outcome.CORRUPT, Signature.TRUNCATED),
    TransportOutcome.IN_BAND_ERROR: (Outcome.ERROR, Signature.ERROR),
    TransportOutcome.HTTP_ERROR: (Outcome.ERROR, Signature.ERROR),
    TransportOutcome.CONNECT_ERROR: (Outcome.ERROR, Signature.ERROR),
    TransportOutcome.RESET: (Outcome.ERROR, Signature.ERROR),
    TransportOutcome.TIMEOUT: (Outcome.ERROR, Signature.ERROR),
    TransportOutcome.CANCELLED: (Outcome.CANCELLED, None),
}


def test_every_transport_outcome_is_judged():
    assert set(TRANSPORT) | {TransportOutcome.COMPLETE} == set(TransportOutcome)


@pytest.mark.parametrize("outcome", TRANSPORT, ids=str)
def test_transport_decides_first(outcome, make_exchange, known_reference, tokenizer, right_ids):
    exchange = make_exchange(calls=call(count=5), outcome=outcome)
    assert verdict(exchange, known_reference(right_ids), tokenizer) == TRANSPORT[outcome]


@pytest.mark.parametrize("outcome", [TransportOutcome.COMPLETE, TransportOutcome.CANCELLED, TransportOutcome.TRUNCATED])
def test_another_requests_nonce_wins_over_everything(outcome, make_exchange, tokenizer):
    nonces = NonceIndex([NonceOwner("OTHER55XY", "request-9", "candidate", 10.5, 12.0)])
    exchange = make_exchange(calls=call(code="OTHER55XY"), outcome=outcome)
    judged = Judge(nonces, tokenizer).judge(exchange.transcript, exchange.assembled)
    assert (judged.outcome, judged.signature) == (Outcome.CORRUPT, Signature.LEAK)
    evidence = next(finding.evidence for finding in judged.findings if finding.signature is Signature.LEAK)
    assert evidence == {
        "nonce": "OTHER55XY",
        "owner_request_id": "request-9",
        "owner_arm": "candidate",
        "in_flight_together": True,
    }


def test_a_contradictory_finish_reason_is_a_protocol_fault(make_exchange, known_reference, tokenizer, right_ids):
    exchange = make_exchange(finish_reason="stop")
    assert verdict(exchange, known_reference(right_ids), tokenizer) == (Outcome.PROTOCOL, Signature.PROTOCOL)


def test_a_protocol_fault_is_not_hidden_by_the_models_own_error(make_exchange, known_reference, tokenizer):
    exchange = make_exchange(calls=call(count=5), finish_reason="stop")
    own = tokenizer.answer_ids(None, call(count=5))
    assert verdict(exchange, known_reference(own), tokenizer) == (Outcome.PROTOCOL, Signature.PROTOCOL)
    assert verdict(exchange, known_reference([EOS]), tokenizer) == (Outcome.CORRUPT, Signature.FIRST_TOKEN)


def test_an_aborted_request_is_an_error(make_exchange, tokenizer):
    assert verdict(make_exchange(finish_reason="abort"), None, tokenizer) == (Outcome.ERROR, Signature.ERROR)


def test_a_drifted_prompt_is_named_and_never_scored(make_exchange, known_reference, tokenizer, right_ids):
    reference = known_reference(right_ids)
    exchange = make_exchange(prompt_tokens=17)
    judged = Judge(NonceIndex(), tokenizer, reference).judge(exchange.transcript, exchange.assembled)
    assert judged.outcome is Outcome.PROTOCOL
    assert [finding.code for finding in judged.findings] == ["prompt_drift"]
    assert reference.asked == []


def test_a_lost_reference_leaves_requests_unscored(make_exchange, tokenizer):
    class Lost:
        def score(self, prompt_ids, answer_ids):
            raise ReferenceUnavailable("the reference cannot be reached")

    exchange = make_exchange(calls=call(count=5))
    judged = Judge(NonceIndex(), tokenizer, Lost()).judge(exchange.transcript, exchange.assembled)
    assert (judged.outcome, judged.reason) == (Outcome.UNSCORED, "the reference cannot be reached")


def test_calls_in_another_order_are_noted_and_left_to_the_reference(
    make_task, make_exchange, known_reference, tokenizer
):
    calls = [("record_event", RIGHT), ("cancel_order", {"who": "amber"})]
    texts = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    exchange = make_exchange(make_task(calls=calls), calls=texts[::-1])
    judged = Judge(NonceIndex(), tokenizer, known_reference(tokenizer.answer_ids(None, texts[::-1]))).judge(
        exchange.transcript, exchange.assembled
    )
    assert judged.outcome is Outcome.OK
    assert [(finding.code, finding.signature) for finding in judged.findings] == [("call_order", None)]


def test_a_call_where_text_was_asked_for(make_task, make_exchange, known_reference, tokenizer):
    task = make_task(text="NONCE7Q4X fjord")
    reference = known_reference(tokenizer.answer_ids("NONCE7Q4X fjord", ()))
    # CALLS where the text begins: the very first token is wrong.
    exchange = make_exchange(task, content="", calls=call())
    assert verdict(exchange, reference, tokenizer) == (Outcome.CORRUPT, Signature.FIRST_TOKEN)


def test_many_are_judged_in_order_at_once(make_exchange, known_reference, tokenizer, right_ids):
    exchanges = [make_exchange(request_id=f"request-{number}") for number in range(40)]
    pairs = ((exchange.transcript, exchange.assembled) for exchange in exchanges)
    judged = list(Judge(NonceIndex(), tokenizer, known_reference(right_ids)).judge_all(pairs, connections=4))
    assert [entry.request_id for entry in judged] == [f"request-{number}" for number in range(40)]
    assert {entry.outcome for entry in judged} == {Outcome.OK}


HOSTILE = {
    "ten megabytes of text": {"content": "x" * 10_000_000, "calls": ()},
    "deep nesting": {"calls": [("record_event", '{"code": ' + "[" * 500_000)]},
    "a megabyte as name": {"calls": [("n" * 1_000_000, "{}")]},
    "two thousand calls": {"calls": [("record_event", "{}")] * 2_000},
    "escapes and markup": {"content": "\x1b[2J<script>alert(1)</script>\u202e", "calls": ()},
    "a surrogate half": {"calls": [("record_event", '{"code": "\\ud83d"}')]},
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_never_raises_hangs_or_prints_raw(
    answer, make_exchange, known_reference, tokenizer, right_ids
):
    exchange = make_exchange(**answer, completion_tokens=100)
    started = time.process_time()
    judged = Judge(NonceIndex(), tokenizer, known_reference(right_ids)).judge(exchange.transcript, exchange.assembled)
    assert time.process_time() - started < 10
    assert judged.outcome in (Outcome.CORRUPT, Outcome.UNSCORED)
    details = [finding.detail for finding in judged.findings]
    assert details and all(
        len(detail) < 1_000 and "\x1b" not in detail and "\u202e" not in detail for detail in details
    )
    assert len(json.dumps(judged.to_json())) < 60_000


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [(40, Outcome.CORRUPT), (9, Outcome.MODEL_ERROR)],
    ids=["cut before its length", "as long as allowed"],
)
def test_an_answer_cut_by_length(limit, outcome, make_exchange, make_task, known_reference, tokenizer):
    task = make_task(text="nothing to call NONCE")
    own = [*b"nothing t"]
    exchange = make_exchange(
        task,
        content="nothing t",
        calls=(),
        finish_reason="length",
        completion_tokens=len(own),
        sent_body=json.dumps({"max_completion_tokens": limit}),
    )
    # every token is the reference's own: only the length that was asked for tells that it was cut.
    judged = verdict(exchange, known_reference(own), tokenizer)
    assert judged == (outcome, Signature.TRUNCATED if outcome is Outcome.CORRUPT else None)


class AnsweringReference:
    """Answers each request with a text and calls of its own; scores as `scorer` does, if at all."""

    def __init__(self, content="", calls=(), margin_nats=None, scorer=None):
        self.answer = OwnAnswer(content, tuple(calls), margin_nats)
        self.asked = []
        self._scorer = scorer

    def score(self, prompt_ids, answer_ids):
        assert self._scorer is not None, "there are no tokens to score"
        return self._scorer.score(prompt_ids, answer_ids)

    def own_answer(self, sent_body):
        self.asked.append(sent_body)
        return self.answer


FREE_RUNNING = {
    "right by a wide margin": (call(), 3.0, (Outcome.CORRUPT, Signature.WRONG_VALUE)),
    "right, past the limit": (call(), 0.51, (Outcome.CORRUPT, Signature.WRONG_VALUE)),
    "right, at the limit": (call(), 0.5, (Outcome.UNSCORED, None)),
    "right, margin not told": (call(), None, (Outcome.CORRUPT, Signature.WRONG_VALUE)),
    "wrong in the same way": (call(count=5), 3.0, (Outcome.MODEL_ERROR, None)),
    "wrong in another way": ([("record_event", "{")], 3.0, (Outcome.MODEL_ERROR, None)),
    "no call at all": ([], 3.0, (Outcome.MODEL_ERROR, None)),
}


@pytest.mark.parametrize(("calls", "margin_nats", "expected"), FREE_RUNNING.values(), ids=FREE_RUNNING.keys())
def test_without_a_tokenizer_a_wrong_answer_is_held_beside_the_references_own(
    calls, margin_nats, expected, make_exchange
):
    reference = AnsweringReference(calls=calls, margin_nats=margin_nats)
    exchange = make_exchange(calls=call(count=5))
    assert verdict(exchange, reference) == expected
    assert reference.asked == [exchange.transcript.sent_body]


@pytest.mark.parametrize(
    ("margin_nats", "told"),
    [
        (3.0, "3.00 nats or more ahead of any other"),
        (0.2, "a near-tie (0.20 nats) might explain it"),
        (None, "by which margin is not known"),
    ],
)
def test_the_margin_is_told(margin_nats, told, make_exchange):
    exchange = make_exchange(calls=call(count=5))
    judged = Judge(NonceIndex(), None, AnsweringReference(calls=call(), margin_nats=margin_nats)).judge(
        exchange.transcript, exchange.assembled
    )
    assert told in (judged.reason or judged.findings[-1].detail)


@pytest.mark.parametrize("answer", ["broken JSON", "a broken word as tool"])
def test_without_a_tokenizer_a_broken_form_keeps_its_signature(answer, make_exchange):
    reference = AnsweringReference(calls=call(), margin_nats=3.0)
    exchange = make_exchange(calls=WRONG[answer][0])
    assert verdict(exchange, reference) == (Outcome.CORRUPT, Signature.GARBLED)


def test_without_a_tokenizer_a_right_answer_is_not_compared(make_exchange):
    reference = AnsweringReference()
    assert verdict(make_exchange(), reference) == (Outcome.OK, None)
    assert reference.asked == []


def test_with_a_tokenizer_the_reference_only_scores(make_exchange, known_reference, tokenizer, right_ids):
    reference = AnsweringReference(calls=call(), scorer=known_reference(right_ids))
    assert verdict(make_exchange(calls=call(count=5)), reference, tokenizer)[0] is Outcome.CORRUPT
    assert reference.asked == []


def test_a_reference_that_refuses_to_answer_leaves_the_request_unscored(make_exchange):
    class Refusing(AnsweringReference):
        def own_answer(self, sent_body):
            raise ReferenceRefused("the reference refused to answer (HTTP 400): too long")

    exchange = make_exchange(calls=call(count=5))
    judged = Judge(NonceIndex(), None, Refusing()).judge(exchange.transcript, exchange.assembled)
    assert (judged.outcome, judged.reason) == (
        Outcome.UNSCORED,
        "the reference refused to answer (HTTP 400): too long",
    )
