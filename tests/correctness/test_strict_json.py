"""Strict JSON: what Python's reader forgives is refused, what RFC 8259 allows is read, and nothing takes long."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.correctness import StrictJsonError
from pdwatch.correctness.strict_json import parse_strict

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"a": 1, "a": 2}', "json_duplicate_key"),
        ('{"x": {"a": 1, "a": 1}}', "json_duplicate_key"),
        ('{"a": NaN}', "json_constant"),
        ('{"a": -Infinity}', "json_constant"),
        ('{"a": 1e999}', "json_number_range"),
        ('{"a": ' + "9" * 5_000 + "}", "json_number_range"),
        ('{"a": "\\ud83d"}', "json_lone_surrogate"),
        ('{"\\ude80": 1}', "json_lone_surrogate"),
        ('["\\ud83d"]', "json_lone_surrogate"),
        ('{"a": [["\\ud83d"]]}', "json_lone_surrogate"),
        ('{"a": 1}{"a": 1}', "json_trailing_data"),
        ('{"a": 1} x', "json_trailing_data"),
        ('{"a": 1', "json_invalid"),
        ("{'a': 1}", "json_invalid"),
        ('{"a": "\x00"}', "json_invalid"),
        ('{"a": 01}', "json_invalid"),
        ("", "json_invalid"),
        ("[" * 65 + "]" * 65, "json_too_deep"),
        ("[" * 900_000, "json_too_deep"),
        ('"' + "a" * 1_000_000 + '"', "json_too_large"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_refused(text, code):
    with pytest.raises(StrictJsonError) as caught:
        parse_strict(text)
    assert caught.value.code == code
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": 1}\n', {"a": 1}),
        ('{"a": 9007199254740993}', {"a": 2**53 + 1}),
        ('{"a": "\\ud83d\\ude80"}', {"a": "🚀"}),
        ('{"a": "[[[["}', {"a": "[[[["}),
        ('{"a": "\\"[{"}', {"a": '"[{'}),
        ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
    ],
    ids=["spaces", "64-bit integer", "surrogate pair", "brackets in a string", "escaped quote", "depth 64"],
)
def test_read(text, value):
    assert parse_strict(text) == value


@given(values, st.booleans())
def test_everything_json_writes_is_read_back(value, ascii_only):
    assert parse_strict(json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)) == value


@given(st.text(max_size=60) | st.text('{}[]":,\\u0aNtrue-1e', max_size=60))
def test_it_accepts_no_more_than_python_and_raises_nothing_else(text):
    try:
        value = parse_strict(text)
    except StrictJsonError:
        return
    assert json.loads(text) == value


@pytest.mark.parametrize(
    "text",
    ['"' + '\\"' * 499_000, '"' * 999_999, "{" + '"a":[' * 10 + '"' + "\\" * 900_000, '{"a":"' + "[" * 999_000],
    ids=["escaped quotes without end", "quotes", "backslashes", "open string of brackets"],
)
def test_hostile_text_costs_linear_time(text):
    started = time.process_time()
    with pytest.raises(StrictJsonError):
        parse_strict(text)
    # a megabyte takes some 50 ms; anything quadratic would take minutes.
    assert time.process_time() - started < 5
