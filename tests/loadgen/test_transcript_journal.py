"""The journal: what is written is read back, and a killed writer costs at most its last record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pdwatch.loadgen import JournalCorrupt, JournalWriter, Outcome, WorkloadConfig, make_task, read_transcripts
from pdwatch.loadgen.plan import Phase, Plan
from pdwatch.loadgen.sources.chat import chat_body


@pytest.fixture
def records(transcript):
    plan = Plan(seed=1, targets={"a": "http://h:1"}, model="m", phases=(Phase(index=0, arm="a", level=1),))
    task = make_task(1, 5, WorkloadConfig())
    sent = chat_body(plan, task.messages, task.tools, 512, is_streamed=True).decode()
    whole = "data: 東京 🚀\n\n".encode()
    return [
        replace(transcript(((100.5, whole[:8]), (100.6, whole[8:]))), task=task, sent_body=sent),
        transcript(((100.5, b"data: \xff\xfe\n\n"),), outcome=Outcome.TRUNCATED),
        replace(transcript(()), status=None, outcome=Outcome.CONNECT_ERROR, response_headers={}),
        transcript(((100.5, b"x" * 300_000),)),
    ]


def write(path: Path, records) -> bytes:
    with JournalWriter(path) as journal:
        for record in records:
            journal.append(record)
    return path.read_bytes()


def test_round_trip(tmp_path: Path, records) -> None:
    write(tmp_path / "j", records)
    assert list(read_transcripts(tmp_path / "j")) == records


def test_a_record_is_on_disk_when_append_returns(tmp_path: Path, records) -> None:
    with JournalWriter(tmp_path / "j") as journal:
        journal.append(records[0])
        assert list(read_transcripts(tmp_path / "j")) == records[:1]


def test_any_cut_loses_only_what_it_cuts(tmp_path: Path, records) -> None:
    ends = [len(write(tmp_path / f"j{n}", records[:n])) for n in range(len(records) + 1)]
    data = (tmp_path / f"j{len(records)}").read_bytes()
    for size in range(0, len(data) + 1, 3):
        (tmp_path / "cut").write_bytes(data[:size])
        whole = max(n for n, end in enumerate(ends) if end <= size)
        assert list(read_transcripts(tmp_path / "cut")) == records[:whole]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        pytest.param(lambda data: b"garbage, not zstd" + data, "record 0 is damaged", id="no journal"),
        pytest.param(lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:], "record 0 is damaged", id="a bit"),
        pytest.param(lambda data: data + b"garbage, not zstd", "record 1 is damaged", id="behind"),
    ],
)
def test_damage_is_told(tmp_path: Path, records, damage, complaint: str) -> None:
    (tmp_path / "j").write_bytes(damage(write(tmp_path / "whole", records[:1])))
    with pytest.raises(JournalCorrupt, match=complaint):
        list(read_transcripts(tmp_path / "j"))


def test_another_record_is_told(tmp_path: Path) -> None:
    import zstandard

    (tmp_path / "j").write_bytes(zstandard.compress(b'{"body":"","chunk_end_bytes":[],"chunk_seconds":[]}\n'))
    with pytest.raises(JournalCorrupt, match="record 0 is no transcript"):
        list(read_transcripts(tmp_path / "j"))
