"""Form of an answer: names, schemas, and text that no healthy answer holds."""

from __future__ import annotations

import time

import pytest

from pdwatch.correctness import Signature, excerpt
from pdwatch.correctness.lexicon import blemishes, first_markup
from pdwatch.correctness.schema import schema_defect, violations
from pdwatch.correctness.structure import examine

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "record_event",
            "parameters": {
                "type": "object",
                "properties": {"count": {"type": "integer"}, "day": {"type": "string", "format": "date"}},
                "required": ["count"],
                "additionalProperties": False,
            },
        },
    }
]
PROMPT = "Please call record_event with count = 5. Or cancel an order."


def seen(content="", calls=()):
    return [(finding.code, finding.signature) for finding in examine(content, calls, TOOLS, PROMPT).findings]


@pytest.mark.parametrize(
    ("name", "arguments", "findings"),
    [
        ("record_event", '{"count": 5}', []),
        ("record_event", '{"count": 5, "day": "2026-02-28"}', []),
        ("record_event", '{"count": "5"}', [("schema_violation", Signature.WRONG_VALUE)]),
        ("record_event", '{"count": true}', [("schema_violation", Signature.WRONG_VALUE)]),
        ("record_event", '{"count": 5, "day": "2026-02-30"}', [("schema_violation", Signature.WRONG_VALUE)]),
        ("record_event", "{}", [("schema_violation", Signature.WRONG_VALUE)]),
        ("record_event", "", [("schema_violation", Signature.WRONG_VALUE)]),
        ("record_event", '{"count": 5, "cxunt": 5}', [("schema_violation", Signature.WRONG_VALUE)]),
        ("record_event", '{"count": 5}}', [("json_trailing_data", Signature.GARBLED)]),
        ("record_event", '{"count": 5}{"count": 5}', [("json_trailing_data", Signature.GARBLED)]),
        ("record_event", "[5]", [("arguments_not_object", Signature.GARBLED)]),
        ("cancel_order", '{"count": 5}', [("unknown_tool", Signature.WRONG_VALUE)]),
        ("recxrd_event", '{"count": 5}', [("unknown_tool", Signature.GARBLED)]),
        ("", '{"count": 5}', [("unknown_tool", Signature.GARBLED)]),
        (
            "record_event<|channel|>",
            '{"count": 5}',
            [("markup", Signature.GARBLED), ("unknown_tool", Signature.GARBLED)],
        ),
    ],
)
def test_one_call(name, arguments, findings):
    assert seen(calls=[(name, arguments)]) == findings


def test_only_the_first_calls_of_very_many_are_examined():
    structure = examine("", [("record_event", '{"count": 5}')] * 65, TOOLS)
    assert [finding.code for finding in structure.findings] == ["too_many_calls"]
    assert len(structure.calls) == 64


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("amber basil, 東京 🚀🔥 Ω≈ç\ttab\nline", None),
        ("a\x00b", "control_character"),
        ("a\x1b[2Jb", "control_character"),
        ("a\x9bb", "control_character"),
        ("a\ufffdb", "broken_utf8"),
        ("a\udcffb", "broken_utf8"),
        ("x<CALL>y", "markup"),
        ("x<ARG>y", "markup"),
        ("<EOS>", "markup"),
        ("<271>", "markup"),
        ("<｜DSML｜invoke", "markup"),
        ("</｜DSML｜parameter>", "markup"),
        ("<｜tool▁calls▁begin｜>", "markup"),
        ("<｜end▁of▁sentence｜>", "markup"),
        ("<|reserved_token_163672|>", "markup"),
        ("<|im_end|>", "markup"),
        ("</think>", "markup"),
        ("<tool_call>", "markup"),
        ("a < b and c > d, <b>bold</b>", None),
        ("!" * 20, "run"),
        ("!" * 19, None),
        ("the " * 16, "repetition"),
        ("the " * 15, None),
        ("amber basil cedar delta ember fjord grove haze iris jade kelp lotus", None),
    ],
    ids=lambda value: ascii(value)[:30] if value else "none",
)
def test_blemishes(text, code):
    assert [blemish.code for blemish in blemishes(text)] == ([code] if code else [])


def test_what_the_prompt_holds_may_be_repeated():
    assert blemishes("say <think>", allowed="Please say <think>.") == ()
    assert blemishes("say </think>", allowed="Please say <think>.") != ()
    assert blemishes("-" * 30, allowed="a rule: " + "-" * 30) == ()


def test_first_markup():
    assert (first_markup("ab<CALL>"), first_markup("ab<c>")) == (2, None)


@pytest.mark.parametrize("text", ["<" * 60_000, "<|" * 30_000, "<think " * 9_000, "<｜" * 30_000, "a" * 60_000])
def test_scanning_hostile_text_takes_linear_time(text):
    started = time.process_time()
    blemishes(text)
    assert time.process_time() - started < 2


def test_an_invalid_schema_is_told_and_blames_nobody():
    schema = {"type": "objekt"}
    assert schema_defect(schema) is not None
    assert violations(schema, {"a": 1}) == ()
    assert schema_defect({"type": "object"}) is None


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "http://127.0.0.1:9/schema.json"}, {"$ref": "#/$defs/absent"}, {"$ref": "#"}],
    ids=["another document", "nowhere", "itself"],
)
def test_a_reference_that_leads_nowhere_is_never_followed(schema):
    assert violations(schema, {"a": 1}) == ()


def test_violations_are_few_short_and_printable():
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    found = violations(schema, {f"key{number}": "\x1b[31m" * 1_000 for number in range(50)})
    assert len(found) == 5
    assert all(len(line) < 300 and "\x1b" not in line for line in found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("東京 🚀", "東京 🚀"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("a\udcffb", "a\\udcffb"),
        ("x\n\ty", "x\\n\\ty"),
        ("abcdef", "abc… (3 more characters)"),
    ],
    ids=ascii,
)
def test_excerpt(text, shown):
    assert excerpt(text, 3 if text == "abcdef" else 160) == shown
