"""Metrics, with the arithmetic."""

from __future__ import annotations

import json
from array import array
from dataclasses import fields, replace

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdwatch.loadgen import METRICS, Outcome, RequestMetrics, assemble, measure, percentile
from pdwatch.loadgen.percentiles import in_order, of_ordered


def chunk(delta=None, finish=None, *, choice=None, **more) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, **(choice or {})}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
TEXT = chunk({"content": "a"})
THOUGHT = chunk({"reasoning_content": "hm"})
CALL = chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]})
FINISH = chunk({}, "stop")
DONE = b"data: [DONE]\n\n"


def usage(tokens: int, **more) -> bytes:
    return chunk(usage={"prompt_tokens": 9, "completion_tokens": tokens, **more})


def counting(tokens: int, delta=None, finish=None) -> bytes:
    """A chunk that tells the tokens so far, as with `continuous_usage_stats`."""
    return chunk(delta or {}, finish, usage={"prompt_tokens": 9, "completion_tokens": tokens})


def metrics_of(
    transcript, *timed: tuple[float, bytes], dialect: str = "sglang", outcome=Outcome.COMPLETE, **changes
) -> RequestMetrics:
    record = replace(transcript(timed, dialect=dialect, outcome=outcome), **changes)
    return measure(record, assemble(record))


def test_sglang(transcript) -> None:
    # sent at 100.0; role with the first token at 100.2, then three more tokens, usage late
    got = metrics_of(transcript, (100.2, ROLE), (100.3, TEXT), (100.5, TEXT), (100.6, FINISH), (101.0, usage(4) + DONE))
    assert got.time_to_first_token_seconds == pytest.approx(0.2)
    assert got.time_to_first_visible_token_seconds == pytest.approx(0.3)
    # TPOT = (100.6 − 100.2) / (4 − 1)
    assert got.time_per_output_token_seconds == pytest.approx(0.4 / 3)
    assert got.output_tokens_per_second == pytest.approx(3 / 0.4)
    # E2E ends with the last token, not with usage: 100.6 − 100.0
    assert got.end_to_end_seconds == pytest.approx(0.6)
    assert got.normalised_end_to_end_seconds == pytest.approx(0.6 / 4)
    assert got.decode_window_seconds == pytest.approx(0.4)
    assert (got.output_tokens, got.prompt_tokens, got.cached_tokens) == (4, 9, None)
    # four chunks for four tokens: gaps are those between tokens
    assert list(got.inter_token_seconds or ()) == pytest.approx([0.1, 0.2, 0.1])
    assert got.inter_chunk_seconds == got.inter_token_seconds
    assert got.longest_inter_chunk_seconds == pytest.approx(0.2)
    assert (got.inter_token_basis, got.chunks, got.coalesced_chunks) == ("chunks", 4, 0)
    # the gaps fill the decode window
    assert sum(got.inter_token_seconds or ()) == pytest.approx(got.decode_window_seconds)


def test_openai_first_token_is_the_first_output(transcript) -> None:
    got = metrics_of(
        transcript, (100.2, ROLE), (100.3, TEXT), (100.5, TEXT), (100.6, FINISH + usage(3)), dialect="openai"
    )
    assert got.time_to_first_token_seconds == pytest.approx(0.3)
    # TPOT = (100.6 − 100.3) / (3 − 1)
    assert got.time_per_output_token_seconds == pytest.approx(0.15)
    assert list(got.inter_token_seconds or ()) == pytest.approx([0.2, 0.1])


def test_kinds_of_first_output(transcript) -> None:
    got = metrics_of(
        transcript, (100.1, ROLE), (100.2, THOUGHT), (100.4, TEXT), (100.7, CALL), (100.8, FINISH + usage(5))
    )
    assert got.time_to_first_token_seconds == pytest.approx(0.1)
    assert got.time_to_first_visible_token_seconds == pytest.approx(0.2)
    assert got.time_to_first_reasoning_seconds == pytest.approx(0.2)
    assert got.time_to_first_content_seconds == pytest.approx(0.4)
    assert got.time_to_first_call_seconds == pytest.approx(0.7)


def test_several_tokens_a_chunk(transcript) -> None:
    got = metrics_of(transcript, (100.2, ROLE), (100.4, TEXT), (100.6, FINISH + usage(9)))
    assert got.time_per_output_token_seconds == pytest.approx(0.4 / 8)
    # nine tokens in three chunks, and nothing says which has how many
    assert (got.inter_token_seconds, got.inter_token_basis) == (None, None)
    assert list(got.inter_chunk_seconds or ()) == pytest.approx([0.2, 0.2])


def test_usage_in_the_chunks_tells_the_tokens_apart(transcript) -> None:
    """Speculative decoding: 1, 3 and 2 tokens a chunk, then the end-of-sequence token."""
    got = metrics_of(
        transcript,
        (100.2, counting(1, {"content": "a"})),
        (100.5, counting(4, {"content": "bcd"})),
        (100.6, counting(6, {"content": "ef"})),
        (100.7, counting(7, {}, "stop")),
        (100.7, usage(7) + DONE),
        dialect="openai",
    )
    # 0.3 s for three, 0.1 s for two, 0.1 s for one
    assert list(got.inter_token_seconds or ()) == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.1])
    assert list(got.inter_chunk_seconds or ()) == pytest.approx([0.3, 0.1, 0.1])
    assert got.inter_token_basis == "usage"
    assert got.time_per_output_token_seconds == pytest.approx(0.5 / 6)


def test_tokens_that_a_parser_holds_back_are_told_by_usage(transcript) -> None:
    """A tool parser swallows tokens 1 to 3: usage grows on deltas without output (sglang PR 36272, FastDeploy 8113)."""
    got = metrics_of(
        transcript,
        (100.1, counting(0, {"role": "assistant", "content": ""})),
        (100.2, counting(1)),
        (100.3, counting(2)),
        (100.4, counting(3)),
        (100.5, counting(4, {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]})),
        (100.6, counting(5, {}, "tool_calls")),
        (101.6, usage(5) + DONE),
        dialect="openai",
    )
    # the first token is where usage grew, not where something showed; decode is not sped up by hidden tokens
    assert got.time_to_first_token_seconds == pytest.approx(0.2)
    assert got.time_to_first_visible_token_seconds == pytest.approx(0.5)
    assert got.decode_window_seconds == pytest.approx(0.4)
    assert got.time_per_output_token_seconds == pytest.approx(0.1)
    assert list(got.inter_token_seconds or ()) == pytest.approx([0.1] * 4)


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(lambda n: {"logprobs": {"content": [{"token": "a", "logprob": -1.0}] * n}}, id="logprobs"),
        pytest.param(lambda n: {"token_ids": list(range(n))}, id="token ids"),
    ],
)
def test_lists_of_tokens_tell_them_apart(transcript, choice) -> None:
    got = metrics_of(
        transcript,
        (100.2, chunk({"content": "a"}, choice=choice(2))),
        (100.6, chunk({"content": "bcde"}, choice=choice(4))),
        (100.7, chunk({}, "stop", choice=choice(1)) + usage(7) + DONE),
        dialect="openai",
    )
    # two tokens came first; four after 0.4 s, one after 0.1 s
    assert list(got.inter_token_seconds or ()) == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])
    assert got.inter_token_basis == "token_lists"


def test_a_count_that_does_not_add_up_is_not_believed(transcript) -> None:
    got = metrics_of(
        transcript,
        (100.2, chunk({"content": "a"}, choice={"token_ids": [1, 2]})),
        (100.6, chunk({"content": "b"}, "stop", choice={"token_ids": [1]}) + usage(7)),
        dialect="openai",
    )
    assert (got.inter_token_seconds, got.inter_token_basis) == (None, None)


def test_usage_that_falls_is_not_believed(transcript) -> None:
    got = metrics_of(
        transcript,
        (100.2, counting(3, {"content": "a"})),
        (100.4, counting(2, {"content": "a"})),
        (100.6, counting(3, {}, "stop")),
        dialect="openai",
    )
    # three tokens in three chunks, so each has one
    assert got.inter_token_basis == "chunks"


def test_chunks_of_one_read_share_its_gap(transcript) -> None:
    """A gap of 0 is the network's or ours, not a token's: what came at once took its share of the time before."""
    got = metrics_of(transcript, (100.2, ROLE), (100.6, TEXT + TEXT), (100.9, FINISH + usage(4)))
    assert list(got.inter_chunk_seconds or ()) == pytest.approx([0.4, 0.0, 0.3])
    assert list(got.inter_token_seconds or ()) == pytest.approx([0.2, 0.2, 0.3])
    assert got.coalesced_chunks == 1


def test_all_in_one_read_has_no_gaps_between_tokens(transcript) -> None:
    got = metrics_of(transcript, (100.2, ROLE + TEXT + FINISH + usage(3)))
    assert got.inter_token_seconds is None
    assert list(got.inter_chunk_seconds or ()) == [0.0, 0.0]
    assert (got.time_per_output_token_seconds, got.output_tokens_per_second) == (0.0, None)


def test_from_schedule(transcript) -> None:
    """Sent 0.4 s late: a user who came on time waited that much longer."""
    got = metrics_of(transcript, (100.2, ROLE), (100.3, TEXT), (100.5, FINISH + usage(3)), scheduled_seconds=99.6)
    assert got.schedule_lag_seconds == pytest.approx(0.4)
    assert got.scheduled_time_to_first_token_seconds == pytest.approx(0.6)
    assert got.scheduled_end_to_end_seconds == pytest.approx(0.9)
    assert got.time_to_first_token_seconds == pytest.approx(0.2)


def test_not_streamed(transcript) -> None:
    body = json.dumps(
        {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
        }
    ).encode()
    got = metrics_of(
        transcript, (100.5, body), is_streamed=False, response_headers={"content-type": "application/json"}
    )
    present = {metric.name: metric.read(got) for metric in METRICS if metric.read(got) is not None}
    assert present == {
        "end_to_end_seconds": 0.5,
        "normalised_end_to_end_seconds": 0.125,
        "output_tokens": 4,
        "prompt_tokens": 9,
        "cached_tokens": 8,
    }


NEVER = {
    "schedule_lag_seconds",
    "scheduled_time_to_first_token_seconds",
    "scheduled_end_to_end_seconds",
    "cached_tokens",
}
KINDS = {"time_to_first_reasoning_seconds", "time_to_first_call_seconds"}
NO_TEXT = {"time_to_first_visible_token_seconds", "time_to_first_content_seconds"}
PACE = {"time_per_output_token_seconds", "output_tokens_per_second", "inter_token_seconds"}
NO_COUNT = PACE | {"output_tokens", "normalised_end_to_end_seconds"}
CHUNKS = {"chunks", "coalesced_chunks", "longest_inter_chunk_seconds", "inter_chunk_seconds"}
NOT_COMPLETE = NO_COUNT | CHUNKS | {"end_to_end_seconds", "decode_window_seconds"}


@pytest.mark.parametrize(
    ("timed", "outcome", "absent"),
    [
        pytest.param([], Outcome.CONNECT_ERROR, {metric.name for metric in METRICS}, id="nothing came"),
        pytest.param(
            [(100.2, ROLE), (100.3, FINISH), (100.3, usage(1))], Outcome.COMPLETE, NO_TEXT | PACE, id="one token"
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, TEXT), (100.4, usage(7))], Outcome.CANCELLED, NOT_COMPLETE, id="cancelled"
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, TEXT)], Outcome.TRUNCATED, NOT_COMPLETE | {"prompt_tokens"}, id="truncated"
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, TEXT), (100.4, FINISH)],
            Outcome.COMPLETE,
            NO_COUNT | {"prompt_tokens"},
            id="no usage",
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, FINISH), (100.4, chunk(usage={"completion_tokens": 0, "prompt_tokens": 9}))],
            Outcome.COMPLETE,
            NO_TEXT | PACE | {"normalised_end_to_end_seconds"},
            id="no token",
        ),
        pytest.param(
            [(100.2, ROLE), (100.3, FINISH), (100.4, chunk(usage={"completion_tokens": "2", "prompt_tokens": True}))],
            Outcome.COMPLETE,
            NO_TEXT | NO_COUNT | {"prompt_tokens"},
            id="usage that counts nothing",
        ),
        pytest.param(
            [(100.2, FINISH), (100.4, usage(1))],
            Outcome.COMPLETE,
            NO_TEXT | PACE | {"longest_inter_chunk_seconds", "inter_chunk_seconds"},
            id="one chunk",
        ),
    ],
)
def test_absent_is_absent(transcript, timed, outcome: Outcome, absent: set[str]) -> None:
    got = metrics_of(transcript, *timed, outcome=outcome)
    assert {metric.name for metric in METRICS if metric.read(got) is None} == absent | NEVER | KINDS


def test_every_field_has_its_row() -> None:
    names = [field.name for field in fields(RequestMetrics)]
    assert [metric.name for metric in METRICS] == [name for name in names if name != "inter_token_basis"]
    assert all(metric.formula and metric.absent_when and metric.unit for metric in METRICS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 5)), min_size=2, max_size=30))
def test_gaps_between_tokens_fill_the_decode_window(transcript, arrivals: list[tuple[float, int]]) -> None:
    timed, now, tokens = [], 100.0, 0
    for gap, count in arrivals:
        now, tokens = now + gap, tokens + count
        timed.append((now, counting(tokens, {"content": "a"})))
    timed.append((now, counting(tokens, {}, "stop")))
    got = metrics_of(transcript, *timed, dialect="openai")
    gaps = got.inter_token_seconds or array("d")
    assert len(gaps) == tokens - arrivals[0][1]
    assert sum(gaps) == pytest.approx(got.decode_window_seconds)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)))


def test_percentile_of_nothing() -> None:
    assert percentile([], 50) is None
    # x = 1, 2, 3, 4; p = 3 · 0.5 = 1.5; 2 + 0.5 · (3 − 2)
    assert percentile([4, 1, 3, 2], 50) == 2.5
    with pytest.raises(ValueError, match="percent is 101"):
        percentile([1.0], 101)


@pytest.mark.parametrize("count", [1, 2, 199_999, 200_000])
def test_few_and_many_are_put_in_order(count: int) -> None:
    values = array("d", ((number * 7919) % 100_003 / 7 for number in range(count)))
    ordered = in_order(values)
    assert len(ordered) == count
    for percent in (0, 50, 99.9, 100):
        got = of_ordered(ordered, percent)
        assert type(got) is float
        assert got == pytest.approx(float(numpy.percentile(values, percent)))
