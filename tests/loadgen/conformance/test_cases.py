"""Every recorded response through a real socket: outcome, what is read, what is noted, what is measured."""

from __future__ import annotations

from typing import Any

import pytest

from pdwatch.loadgen import DEFECTS, Outcome, Transcript, assemble, measure
from pdwatch.loadgen.assembly import Assembled
from pdwatch.loadgen.strict import StrictReading

NOTHING: dict[str, Any] = {
    "content": "",
    "reasoning": "",
    "refusal": "",
    "calls": [],
    "finish_reason": None,
    "output_tokens": None,
}


def said(reading: Assembled | StrictReading) -> dict[str, Any]:
    """A reading in the words of expected.json. An opening role chunk brings a text of no length, which says nothing."""
    return {
        "content": reading.content or "",
        "refusal": reading.refusal or "",
        "calls": [[call.id, call.name, call.arguments_text] for call in reading.tool_calls],
        "finish_reason": reading.finish_reason,
        "output_tokens": (reading.usage or {}).get("completion_tokens"),
    }


def check_lenient(got: Assembled, expected: dict[str, Any]) -> None:
    assert {**said(got), "reasoning": got.reasoning or ""} == {k: expected.get(k, v) for k, v in NOTHING.items()}
    assert list(got.counted_tokens) == expected.get("counted_tokens", list(got.counted_tokens))
    assert list(got.output_token_counts) == expected.get("output_token_counts", [])


def check_strict(got: Assembled, expected: Any) -> None:
    strict = got.strict
    if expected == "same":
        assert (strict.error, said(strict)) == (None, said(got))
        return
    error = expected.get("error")
    assert strict.error is None if error is None else error in (strict.error or "")
    read = {**said(strict), "passed_over": strict.passed_over}
    assert {key: read[key] for key in expected if key != "error"} == {k: v for k, v in expected.items() if k != "error"}


def check(case, transcript: Transcript) -> Assembled:
    expected = case.expected
    assert (transcript.outcome, transcript.outcome_detail) == (Outcome(expected["outcome"]), transcript.outcome_detail)
    assert expected.get("detail", "") in transcript.outcome_detail
    got = assemble(transcript)
    if case.ending == "reset":
        # a reset drops what has arrived and is not read yet.
        assert expected["lenient"].get("content", "").startswith(got.content or "")
    elif transcript.outcome is not Outcome.HTTP_ERROR:
        check_lenient(got, expected["lenient"])
    if "defects" in expected:
        assert {defect.code: defect.count for defect in got.defects} == expected["defects"]
    return got


def test_case(case, record) -> None:
    transcript: Transcript = record(case)
    got = check(case, transcript)
    expected = case.expected
    if "strict" in expected:
        check_strict(got, expected["strict"])
    metrics = measure(transcript, got)
    assert [name for name in expected.get("has", []) if getattr(metrics, name) is None] == []
    assert [name for name in expected.get("lacks", []) if getattr(metrics, name) is not None] == []
    # what stands in the journal gives the same answer.
    assert assemble(Transcript.from_record(transcript.to_record())) == got


@pytest.mark.parametrize("size", [1, 3, 64], ids=["bytes", "writes of 3", "writes of 64"])
def test_any_writes_give_the_same(case, record, size: int) -> None:
    transcript: Transcript = record(case, range(size, len(case.response), size))
    if case.cancel is not None:
        # the client went after its first read, whatever that brought.
        assert transcript.outcome is Outcome.CANCELLED
        return
    check(case, transcript)


def test_every_outcome_but_two_has_a_case(cases) -> None:
    # no connection is no response, and what is too long is made in test_hostile.py.
    assert {case.expected["outcome"] for case in cases} == set(Outcome) - {Outcome.CONNECT_ERROR}


def test_every_defect_has_a_case(cases) -> None:
    found = {code for case in cases for code in case.expected.get("defects", {})}
    # these two are megabytes long, and are made in test_hostile.py.
    assert set(DEFECTS) - found == {"oversized_event", "too_many_calls"}


@pytest.fixture
def named(cases):
    return {case.name: case for case in cases}


def test_late_usage_extends_nothing(named, record) -> None:
    case = named["usage_late"]
    transcript: Transcript = record(case)
    metrics = measure(transcript, assemble(transcript))
    assert metrics.end_to_end_seconds is not None
    # the server waited between the last token and usage; how late the client read the former is its own matter.
    after_last_token = transcript.ended_seconds - transcript.sent_seconds - metrics.end_to_end_seconds
    assert after_last_token > case.expected["pause"]["seconds"] / 2


def test_empty_deltas_are_no_first_token(named, record) -> None:
    case = named["empty_deltas_first"]
    transcript: Transcript = record(case)
    got = assemble(transcript)
    metrics = measure(transcript, got)
    assert metrics.time_to_first_token_seconds is not None
    assert metrics.time_to_first_token_seconds >= case.expected["pause"]["seconds"]
    assert got.first_choice_seconds is not None
    assert got.first_choice_seconds - transcript.sent_seconds < metrics.time_to_first_token_seconds


def test_events_of_one_read_share_its_time(named, record) -> None:
    transcript: Transcript = record(named["four_events_per_write"])
    got = assemble(transcript)
    assert len(got.output_seconds) == 5
    assert set(got.output_seconds) <= {seconds for seconds, _ in transcript.chunks}


def test_a_request_that_fails_leaves_the_next_one_alone(cases, serve, asker, chunked, stream) -> None:
    """One client asks for every case in turn, with a good answer after each."""
    played = [case for case in cases if case.ending in ("keep", "close", "reset") and case.cancel is None]
    good = chunked(stream("text"))
    turns = iter([turn for case in played for turn in (case, None)])

    def play(connection, request) -> bool:
        turn = next(turns)
        if turn is None:
            connection.sendall(good)
            return True
        kept: bool = turn.play(connection, (), _Never())
        return kept

    one = asker(serve(play).url)
    for sequence, case in enumerate(played):
        one(sequence=2 * sequence)
        assert one(sequence=2 * sequence + 1).outcome is Outcome.COMPLETE, case.name


class _Never:
    def wait(self, seconds: float) -> bool:
        return False
