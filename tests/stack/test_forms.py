from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pdwatch.stack.embedded.curriculum import sample
from pdwatch.stack.embedded.forms import answer_forms
from pdwatch.stack.embedded.parser import AnswerParser, CallArguments, CallStart, ContentDelta
from pdwatch.stack.embedded.tokens import ARGUMENT, ASSISTANT, CALL, CALLS, END, EOS


def received(tokens: list[int]) -> tuple[str, list[tuple[str, str]]]:
    """The answer as a client assembles it."""
    parser = AnswerParser()
    text, calls = "", []
    for delta in [*parser.feed(tokens), *parser.finish()]:
        match delta:
            case ContentDelta(piece):
                text += piece
            case CallStart(_, name):
                calls.append((name, ""))
            case CallArguments(index, fragment):
                calls[index] = (calls[index][0], calls[index][1] + fragment)
    return text, calls


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([*b"text", EOS], id="text"),
        pytest.param([CALLS, *b"text", EOS], id="text behind a lone CALLS"),
        pytest.param([*b"a", CALLS, CALL, *b"f", END, EOS], id="text before a call"),
        pytest.param([CALLS, CALL, *b"f", END, *b"a", EOS], id="text after a call"),
        pytest.param([CALLS, CALL, *b"f", ARGUMENT, *b'a="x', ASSISTANT, *b'"', END, EOS], id="markup in a value"),
        pytest.param([CALLS, CALL, *b"f", ARGUMENT, *b"a=[1", EOS], id="a call without an end"),
    ],
)
def test_a_malformed_answer_has_its_own_tokens_among_its_forms(tokens: list[int]) -> None:
    assert tokens in answer_forms(*received(tokens))


@given(st.integers(0, 10**6), st.data())
def test_one_swapped_byte_can_be_recovered(seed: int, data: st.DataObject) -> None:
    _, answer = sample(random.Random(seed), 512)
    values = [index for index, token in enumerate(answer) if chr(token).isalnum() and token < 128]
    assume(values)
    answer[data.draw(st.sampled_from(values))] = ord("'")
    text, calls = received(answer)
    # a field of an inner object reads like an outer one: then the count differs and nothing is claimed.
    forms = [form for form in answer_forms(text, calls) if len(form) == len(answer)]
    assert all(form == answer for form in forms)
