"""Rows: made from transcripts, written, read again."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from pdwatch.loadgen import JournalCorrupt, assemble, measure
from pdwatch.loadgen.metrics import RequestMetrics
from pdwatch.loadgen.row import RequestRow, RowWriter, read_rows, row_of
from pdwatch.loadgen.sources import SessionTurn


def test_from_a_transcript(transcript, stream) -> None:
    data = stream("tool_call")
    record = replace(
        transcript(((100.2, data[:500]), (100.4, data[500:]))),
        sent_body='{"é": 1}',
        outcome_detail="x" * 1000,
        session=SessionTurn("s-1", 2, 4),
        provenance={"family": "copy", "source": "tool_calls", "expects": "http_error"},
    )
    assembled = assemble(record)
    metrics = measure(record, assembled)
    got = row_of(record, assembled, metrics)
    for field in fields(RequestMetrics):
        assert getattr(got, field.name) == getattr(metrics, field.name)
    assert (got.request_bytes, got.response_bytes, got.reads) == (9, len(data), 2)
    assert (got.session, got.turn, got.family) == ("s-1", 2, "copy")
    assert got.expects == "http_error" and not got.is_expected_error
    assert len(got.outcome_detail) == 300
    assert got.finish_reason == "tool_calls"


def test_written_and_read(tmp_path: Path, row, failure) -> None:
    rows = [
        row(0, defects=("no_done",), expects="call"),
        failure(1, scheduled_seconds=99.5),
        row(2, outcome_detail="\ufffd"),
    ]
    path = tmp_path / "requests.jsonl.zst"
    with RowWriter(path) as writer:
        for item in rows:
            writer.append(item)
    # the gaps stay behind: they follow from the transcripts
    assert list(read_rows(path)) == [replace(item, inter_token_seconds=None, inter_chunk_seconds=None) for item in rows]


def test_due_by_its_schedule_if_it_has_one(row) -> None:
    assert (row(0, 100.0).due_seconds, row(0, 100.0).due_lag_seconds) == (100.0, 0.0)
    late = row(0, 100.0, scheduled_seconds=98.5)
    assert (late.due_seconds, late.due_lag_seconds) == (98.5, 1.5)


def test_halves_of_characters_do_not_stop_it(tmp_path: Path, transcript) -> None:
    record = replace(transcript(()), outcome_detail="bad \udcff byte", sent_body="\udcff")
    assembled = assemble(record)
    got = row_of(record, assembled, measure(record, assembled))
    with RowWriter(tmp_path / "rows") as writer:
        writer.append(got)
    assert next(read_rows(tmp_path / "rows")).outcome_detail == "bad \ufffd byte"


def test_something_else_is_no_row(tmp_path: Path, row) -> None:
    class Lie(RequestRow):
        def to_record(self) -> dict[str, object]:
            return {"label": "measured"}

    values = {field.name: getattr(row(), field.name) for field in fields(RequestRow)}
    with RowWriter(tmp_path / "rows") as writer:
        writer.append(Lie(**values))
    with pytest.raises(JournalCorrupt, match="record 0 is no request"):
        list(read_rows(tmp_path / "rows"))
