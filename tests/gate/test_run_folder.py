"""A run folder is readable at every moment, whoever was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pdwatch.gate.derive import derive, stored_reference
from pdwatch.gate.errors import RunFolderError
from pdwatch.gate.policy import GatePolicy
from pdwatch.gate.run_folder import ClientRecord, RunFolder, State
from pdwatch.gate.verdict import Result

WRITER = """
import sys, time
from pathlib import Path
from pdwatch.gate.journal import JournalWriter
from pdwatch.gate.run_folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
text = 'sglang:num_running_reqs{engine_type="decode"} 3.0\\n' * 50
with JournalWriter(folder.server_samples) as journal:
    for number in range(10**9):
        folder.update(stage=f"stage {number}")
        journal.append({"seconds": time.monotonic(), "unix_seconds": 1.0, "name": "candidate decode-0",
                        "arm": "candidate", "role": "decode", "text": text})
        print(number, flush=True)
"""


def test_the_record_is_there_from_the_first_moment(tmp_path: Path, policy: GatePolicy) -> None:
    folder = RunFolder.create(tmp_path / "run", policy, ("pdwatch", "gate"), embedded=True)
    record = json.loads((folder.path / "run.json").read_text())
    assert record["state"] == "running"
    assert record["policy"]["load"]["levels"] == [1, 4]
    assert RunFolder.open(folder.path).record == folder.record


def test_a_folder_in_use_is_refused_and_default_names_do_not_collide(
    tmp_path: Path, policy: GatePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder.create(tmp_path / "run", policy, embedded=True)
    with pytest.raises(RunFolderError, match=r"not empty; choose another with --out"):
        RunFolder.create(tmp_path / "run", policy, embedded=True)
    monkeypatch.chdir(tmp_path)
    made = {RunFolder.create(None, policy, embedded=True).path for _ in range(3)}
    assert len(made) == 3


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "is not a run folder"), ("{", "was not written by this version"), ('{"run_id": 1}', "`run_id`")],
    ids=["absent", "torn", "other"],
)
def test_what_is_no_run_is_named(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match=told):
        RunFolder.open(tmp_path)


def test_a_killed_writer_leaves_a_folder_that_reports(recorded_run: RunFolder) -> None:
    command = [sys.executable, "-c", WRITER, str(recorded_run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    # the transcript journal too is cut in the middle of its last record
    content = recorded_run.transcripts.read_bytes()
    recorded_run.transcripts.write_bytes(content[:-20])

    folder = RunFolder.open(recorded_run.path)
    with stored_reference(folder.reference_scores) as reference:
        verdict = derive(folder, reference, finished=False)
    assert verdict.result is Result.INCONCLUSIVE
    assert "run was cut short: it was stopped at stage `stage" in verdict.headline
    rows = pq.read_table(folder.requests_table).to_pylist()
    assert len(rows) == 7
    assert {row["outcome"] for row in rows} == {"ok"}
    # 50 lines of one series are one series; at least the 20 scrapes that were told of are there
    assert pq.read_table(folder.server_table).num_rows >= 20 * 50
    for name in ("verdict.json", "junit.xml", "report.html"):
        assert (folder.path / name).stat().st_size > 0


def test_a_damaged_journal_is_read_up_to_the_damage_and_told(recorded_run: RunFolder) -> None:
    content = bytearray(recorded_run.transcripts.read_bytes())
    content[len(content) // 2] ^= 0xFF
    recorded_run.transcripts.write_bytes(content)
    verdict = derive(recorded_run, None, finished=True)
    assert verdict.result is Result.INCONCLUSIVE
    assert "is damaged" in next(check.text for check in verdict.reasons if check.name == "complete")
    assert 0 < pq.read_table(recorded_run.requests_table).num_rows < 8


def test_metrics_of_the_rows_come_from_the_transcripts(recorded_run: RunFolder) -> None:
    derive(recorded_run, None, finished=True)
    row = pq.read_table(recorded_run.requests_table).to_pylist()[0]
    # the builder sends one second after the start; the first token comes 0.1 s later, the last before [DONE]
    assert row["sent_seconds"] == pytest.approx(1.0)
    assert row["time_to_first_token_seconds"] == pytest.approx(0.1)
    assert row["first_token_seconds"] == pytest.approx(1.1)
    assert row["transport"] == "complete"


def test_a_failed_run_says_what_died(recorded_run: RunFolder) -> None:
    recorded_run.update(state=State.FAILED, failure="decode-0 was killed by SIGKILL")
    verdict = derive(RunFolder.open(recorded_run.path), None, finished=False)
    assert "decode-0 was killed by SIGKILL" in verdict.headline


def test_what_the_client_said_of_itself_is_kept_and_counts(recorded_run: RunFolder) -> None:
    lag = ("loop lag p99 130 ms is over 100 ms: stamps are late by that much",)
    fine, limited = (
        ClientRecord(phase=0, arm="candidate", level=1, is_valid=True),
        ClientRecord(
            phase=1, arm="candidate", level=4, is_valid=False, reasons=lag, facts={"loop_lag_p99_seconds": 0.13}
        ),
    )
    recorded_run.update(client=(fine, limited))
    verdict = derive(RunFolder.open(recorded_run.path), None, finished=True)
    (check,) = [check for check in verdict.reasons if check.name == "client"]
    assert (check.level, check.result.value, check.text) == (
        4,
        "INCONCLUSIVE",
        f"the client was the limit: candidate: {lag[0]}",
    )


def test_deriving_twice_gives_the_same_verdict(recorded_run: RunFolder) -> None:
    first = derive(recorded_run, None, finished=True)
    assert derive(recorded_run, None, finished=True) == first


def test_an_empty_run_still_reports(tmp_path: Path, policy: GatePolicy) -> None:
    folder = RunFolder.create(tmp_path / "run", policy, embedded=True)
    verdict = derive(folder, None, finished=False)
    assert verdict.result is Result.INCONCLUSIVE
    assert folder.report.exists()
