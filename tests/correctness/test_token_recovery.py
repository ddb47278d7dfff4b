"""Tokens from text: exact when the counts agree, lost when too few, never guessed."""

from __future__ import annotations

import pytest

from pdwatch.correctness import recover
from pdwatch.correctness.difference import bytes_missing, differ
from pdwatch.correctness.wire import check_lost_bytes, check_protocol

EOS, CALLS, CALL, ARGUMENT, END = 257, 261, 262, 263, 264


def test_exact_text(tokenizer):
    recovery = recover(tokenizer, "hé", (), 4, "stop")
    assert (recovery.ids, recovery.exact) == ((104, 0xC3, 0xA9, EOS), True)


def test_exact_calls(tokenizer):
    recovery = recover(tokenizer, "", [("f", '{"x": 1}')], 9, "tool_calls")
    assert (recovery.ids, recovery.exact) == ((CALLS, CALL, 102, ARGUMENT, 120, 61, 49, END, EOS), True)


def test_an_answer_cut_by_length_has_no_end_token(tokenizer):
    assert recover(tokenizer, "abc", (), 3, "length").ids == (97, 98, 99)
    assert recover(tokenizer, "abc", (), 4, "length").lost_tokens == 1


def test_spelled_out_markup_is_one_token_when_the_count_says_so(tokenizer):
    # a, b, <ARG> and the end are 4 tokens; spelled out they would be 8.
    assert recover(tokenizer, "ab<ARG>", (), 4, "stop").ids == (97, 98, ARGUMENT, EOS)
    assert recover(tokenizer, "ab<ARG>", (), 8, "stop").ids == (97, 98, *b"<ARG>", EOS)
    in_value = recover(tokenizer, "", [("f", '{"x": "<ARG>"}')], 11, "tool_calls")
    assert in_value.ids == (CALLS, CALL, 102, ARGUMENT, 120, 61, 34, ARGUMENT, 34, END, EOS)


@pytest.mark.parametrize(
    ("content", "calls", "completion_tokens", "prefix", "lost", "reason"),
    [
        ("abc", (), 6, (), 2, "2 more tokens than were received"),
        ("abc", (), 2, (97, 98, 99), 0, "2 more tokens than the server counted"),
        ("abc", (), None, (97, 98, 99), 0, "counted no completion tokens"),
        ("ab\ufffd", (), 4, (97, 98), 0, "replacement character"),
        ("ab<ARG>x", (), 6, (97, 98), 0, "3 more tokens than the server counted"),
        ("text", [("f", "{}")], 9, (), 0, "no exact token form"),
        ("", [("f", '{"x": ')], 9, (), 0, "no exact token form"),
        ("x" * 70_000, (), 70_001, (120,) * 4096, 0, "70000 characters"),
    ],
    ids=["lost", "too many", "no count", "U+FFFD", "markup, wrong count", "text and call", "broken call", "huge"],
)
def test_not_exact(content, calls, completion_tokens, prefix, lost, reason, tokenizer):
    recovery = recover(tokenizer, content, calls, completion_tokens, "stop")
    assert not recovery.exact
    assert (recovery.ids, recovery.lost_tokens) == (prefix, lost)
    assert reason in str(recovery.reason)


class WithForms:
    """A tokenizer that also knows what a broken answer may be made of."""

    def __init__(self, tokenizer, *forms):
        self.prompt_ids, self.answer_ids = tokenizer.prompt_ids, tokenizer.answer_ids
        self.forms = forms

    def answer_forms(self, content, calls):
        return self.forms


@pytest.mark.parametrize(
    ("forms", "ids", "reason"),
    [
        ([(CALLS, 1, EOS), (CALLS, 1, 2, EOS)], (CALLS, 1, 2, EOS), None),
        ([(CALLS, 1, 2, EOS), (CALLS, 1, 2, EOS)], (CALLS, 1, 2, EOS), None),
        ([(CALLS, 1, 2, EOS), (1, CALLS, 2, EOS)], (), "several token sequences make this answer"),
        ([(CALLS, 1, EOS)], (), "the answer has no exact token form"),
    ],
    ids=["one fits", "the same twice", "two fit", "none fits"],
)
def test_forms_of_a_broken_answer(forms, ids, reason, tokenizer):
    recovery = recover(WithForms(tokenizer, *forms), "", [("f", '{"x": ')], 4, "stop")
    assert (recovery.ids, recovery.reason, recovery.exact) == (ids, reason, reason is None)


def test_a_tokenizer_that_gives_up_on_deep_nesting(tokenizer):
    recovery = recover(tokenizer, "", [("f", "[" * 50_000)], 9, "stop")
    assert recovery.reason == "the answer has no exact token form"


@pytest.mark.parametrize(
    ("expected", "received", "missing"),
    [
        ("abcd", "abd", 1),
        ("abcd", "", 4),
        ("abcd", "abcd", None),
        ("abcd", "acbd", None),
        ("aé", "a", 2),
        ("a", "ab", None),
    ],
)
def test_bytes_missing(expected, received, missing):
    assert bytes_missing(expected, received) == missing


def test_lost_bytes_need_the_servers_full_count(make_exchange):
    whole = make_exchange(completion_tokens=40).assembled
    assert check_lost_bytes(whole, 'f{"x": 1}', 'f{"x": }', 40) is not None
    assert check_lost_bytes(whole, 'f{"x": 1}', 'f{"x": }', 41) is None
    assert check_lost_bytes(whole, 'f{"x": 1}', 'f{"x": 2}', 40) is None


def test_differing_bytes_are_marked():
    difference = differ("call 東京 now", "call 東亰 now!")
    assert difference is not None
    # 京 is E4 BA AC and 亰 is E4 BA B0: one byte differs, at 5 + 3 + 2; and one is added at the end.
    assert [
        (part.expected_start, part.expected_end, part.received_start, part.received_end) for part in difference.ranges
    ] == [
        (10, 11, 10, 11),
        (15, 15, 15, 16),
    ]
    assert differ("same", "same") is None


def test_a_difference_of_hostile_size_is_cut():
    difference = differ("a" * 100_000, "b" * 100_000)
    assert difference is not None
    assert len(difference.expected) == 4096


CHUNK = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":%s}]}\n\n'


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (
            CHUNK % b'{"content":"x"},"finish_reason":"stop"' + b"data: [DONE]\n\n",
            {"no_usage"},
        ),
        (CHUNK % b'{"content":"x"}', {"no_finish_reason", "no_done", "no_usage"}),
    ],
    ids=["usage was not promised", "no end"],
)
def test_defects_become_findings(body, codes, make_exchange):
    findings = check_protocol(make_exchange(body=body).assembled)
    assert {finding.code for finding in findings} == codes
    signatures = {finding.code: finding.signature for finding in findings}
    assert signatures["no_usage"] is None
    assert signatures.get("no_finish_reason") in (None, "truncated")
