"""Metrics, with the arithmetic."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.loadgen import METRICS, Outcome, RequestMetrics, assemble, measure, percentile


def chunk(delta=None, finish=None, **more) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
TEXT = chunk({"content": "a"})
FINISH = chunk({}, "stop")


def usage(tokens: int) -> bytes:
    return chunk(usage={"prompt_tokens": 9, "completion_tokens": tokens})


def metrics_of(transcript, *timed: tuple[float, bytes], dialect: str = "sglang", outcome=Outcome.COMPLETE):
    record = transcript(timed, dialect=dialect, outcome=outcome)
    return measure(record, assemble(record))


def test_sglang(transcript) -> None:
    # sent at 100.0; role with the first token at 100.2, then three more tokens, usage late
    got = metrics_of(
        transcript,
        (100.2, ROLE),
        (100.3, TEXT),
        (100.5, TEXT),
        (100.6, FINISH),
        (101.0, usage(4) + b"data: [DONE]\n\n"),
    )
    assert got.time_to_first_token_seconds == pytest.approx(0.2)
    assert got.time_to_first_visible_token_seconds == pytest.approx(0.3)
    # TPOT = (100.6 − 100.2) / (4 − 1)
    assert got.time_per_output_token_seconds == pytest.approx(0.4 / 3)
    # E2E ends with the last token, not with usage: 100.6 − 100.0
    assert got.end_to_end_seconds == pytest.approx(0.6)
    assert got.decode_window_seconds == pytest.approx(0.4)
    assert (got.output_tokens, got.prompt_tokens) == (4, 9)
    # four chunks for four tokens: gaps are those between tokens
    assert got.inter_token_seconds == pytest.approx((0.1, 0.2, 0.1))
    assert got.inter_chunk_seconds == got.inter_token_seconds


def test_openai_first_token_is_the_first_output(transcript) -> None:
    got = metrics_of(
        transcript, (100.2, ROLE), (100.3, TEXT), (100.5, TEXT), (100.6, FINISH + usage(3)), dialect="openai"
    )
    assert got.time_to_first_token_seconds == pytest.approx(0.3)
    # TPOT = (100.6 − 100.3) / (3 − 1)
    assert got.time_per_output_token_seconds == pytest.approx(0.15)
    assert got.inter_token_seconds == pytest.approx((0.2, 0.1))


def test_several_tokens_a_chunk(transcript) -> None:
    got = metrics_of(transcript, (100.2, ROLE), (100.4, TEXT), (100.6, FINISH + usage(9)))
    assert got.time_per_output_token_seconds == pytest.approx(0.4 / 8)
    assert got.inter_token_seconds is None
    assert got.inter_chunk_seconds == pytest.approx((0.2, 0.2))


def test_chunks_of_one_read_have_no_gap(transcript) -> None:
    got = metrics_of(transcript, (100.2, ROLE + TEXT), (100.6, FINISH + usage(3)))
    assert got.inter_token_seconds == pytest.approx((0.0, 0.4))


@pytest.mark.parametrize(
    ("timed", "outcome", "absent"),
    [
        pytest.param(
            [],
            Outcome.CONNECT_ERROR,
            {field.name for field in fields(RequestMetrics)},
            id="nothing came",
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, FINISH), (100.3, usage(1))],
            Outcome.COMPLETE,
            {"time_to_first_visible_token_seconds", "time_per_output_token_seconds", "inter_token_seconds"},
            id="one token",
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, TEXT), (100.4, usage(7))],
            Outcome.CANCELLED,
            {
                "time_per_output_token_seconds",
                "end_to_end_seconds",
                "decode_window_seconds",
                "output_tokens",
                "inter_token_seconds",
                "inter_chunk_seconds",
            },
            id="cancelled",
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, TEXT), (100.4, FINISH)],
            Outcome.COMPLETE,
            {"time_per_output_token_seconds", "output_tokens", "prompt_tokens", "inter_token_seconds"},
            id="no usage",
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, FINISH), (100.4, chunk(usage={"completion_tokens": "2", "prompt_tokens": True}))],
            Outcome.COMPLETE,
            {
                "time_to_first_visible_token_seconds",
                "time_per_output_token_seconds",
                "output_tokens",
                "prompt_tokens",
                "inter_token_seconds",
            },
            id="usage that counts nothing",
        ),
    ],
)
def test_absent_is_absent(transcript, timed, outcome: Outcome, absent: set[str]) -> None:
    got = metrics_of(transcript, *timed, outcome=outcome)
    assert {metric.name for metric in METRICS if metric.read(got) is None} == absent


def test_every_field_has_its_row() -> None:
    assert [metric.name for metric in METRICS] == [field.name for field in fields(RequestMetrics)]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)))


def test_percentile_of_nothing() -> None:
    assert percentile([], 50) is None
    # x = 1, 2, 3, 4; p = 3 · 0.5 = 1.5; 2 + 0.5 · (3 − 2)
    assert percentile([4, 1, 3, 2], 50) == 2.5
    with pytest.raises(ValueError, match="percent is 101"):
        percentile([1.0], 101)
