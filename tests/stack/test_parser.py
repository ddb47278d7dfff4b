from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.stack.embedded.curriculum import sample
from pdwatch.stack.embedded.parser import AnswerParser, CallArguments, CallStart, ContentDelta, Delta
from pdwatch.stack.embedded.template import render_answer
from pdwatch.stack.embedded.tokens import ARGUMENT, ASSISTANT, CALL, CALLS, END, EOS, VOCABULARY_SIZE


def parsed(tokens: list[int], step: int = 1) -> list[Delta]:
    parser = AnswerParser()
    deltas = [delta for first in range(0, len(tokens), step) for delta in parser.feed(tokens[first : first + step])]
    return deltas + parser.finish()


def assembled(deltas: list[Delta]) -> tuple[str, list[tuple[str, str]]]:
    text = ""
    names: list[str] = []
    arguments: list[str] = []
    for delta in deltas:
        match delta:
            case ContentDelta(piece):
                text += piece
            case CallStart(index, name):
                assert index == len(names)
                names.append(name)
                arguments.append("")
            case CallArguments(index, fragment):
                arguments[index] += fragment
    return text, list(zip(names, arguments, strict=True))


def test_a_call_comes_name_first_then_its_arguments() -> None:
    tokens = [CALLS, CALL, *b"book", ARGUMENT, *b"city=", *'"東"'.encode(), ARGUMENT, *b"n=7", END, EOS]
    assert parsed(tokens) == [
        CallStart(0, "book"),
        CallArguments(0, '{"city": '),
        CallArguments(0, '"'),
        # three bytes, one character: the first two are held back.
        CallArguments(0, "東"),
        CallArguments(0, '"'),
        CallArguments(0, ', "n": '),
        CallArguments(0, "7"),
        CallArguments(0, "}"),
    ]


@pytest.mark.parametrize(
    ("tokens", "text", "calls"),
    [
        pytest.param([*b"plain", EOS], "plain", [], id="text"),
        pytest.param([CALLS, CALL, *b"f", END, EOS], "", [("f", "{}")], id="no arguments"),
        pytest.param([CALLS, CALL, *b"f", ARGUMENT, *b"a=1"], "", [("f", '{"a": 1')], id="cut in a value"),
        pytest.param([CALLS, CALL, *b"f", ARGUMENT, *b"a"], "", [("f", '{"a"')], id="cut in a field"),
        pytest.param([CALLS, CALL, *b"f"], "", [("f", "")], id="cut in a name"),
        pytest.param([*b"a", 0xE6, 0x9D], "a�", [], id="half a character"),
        pytest.param([0xFF, *b"a", EOS], "�a", [], id="a byte that is not UTF-8"),
        pytest.param([*b"a", CALL, *b"b", EOS], "a<CALL>b", [], id="markup in text"),
        pytest.param([CALLS, *b"x", EOS], "x", [], id="text between calls"),
        pytest.param(
            [CALLS, CALL, *b"f", ARGUMENT, *b"a=", CALLS, *b"1", END],
            "",
            [("f", '{"a": <CALLS>1}')],
            id="in a value",
        ),
        pytest.param([CALLS, CALL, *b"f", ASSISTANT, END], "", [("f<AST>", "{}")], id="markup in a name"),
        pytest.param([270, EOS], "<270>", [], id="an id without a meaning"),
    ],
)
def test_what_is_odd_stays_visible(tokens: list[int], text: str, calls: list[tuple[str, str]]) -> None:
    assert assembled(parsed(tokens)) == (text, calls)


@given(st.integers(0, 10**6), st.sampled_from([512, 1024]), st.integers(1, 9))
def test_rendering_an_assembled_answer_gives_its_tokens_back(seed: int, bucket: int, step: int) -> None:
    _, answer = sample(random.Random(seed), bucket)
    text, calls = assembled(parsed(answer, step))
    assert render_answer(text or None, calls) == answer


@given(st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=60), st.integers(1, 7))
def test_any_tokens_in_any_steps_give_one_answer(tokens: list[int], step: int) -> None:
    assert assembled(parsed(tokens, step)) == assembled(parsed(tokens, len(tokens) or 1))
