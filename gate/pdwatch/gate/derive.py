"""Everything derived from a run's journals: tables, verdict, JUnit, report. The same for a fresh and a killed run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from pdwatch.correctness import JournalError, ScoreJournal, Scorer, StoredReference, Tokenizer
from pdwatch.gate.assess import RunFacts, assess
from pdwatch.gate.atomic import write_bytes_atomically
from pdwatch.gate.batch import running_batches
from pdwatch.gate.judging import Transcripts, judge_transcripts
from pdwatch.gate.junit import junit_xml
from pdwatch.gate.names import BASELINE, EMBEDDED_MODEL
from pdwatch.gate.report.render import render_report
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.run_folder import ClientRecord, RunFolder, State
from pdwatch.gate.server_samples import load_server_samples
from pdwatch.gate.tables import write_requests_table, write_server_table
from pdwatch.gate.verdict import Verdict


def derive(
    folder: RunFolder,
    reference: Scorer | None,
    *,
    finished: bool,
    connections: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> Verdict:
    """Judge the transcripts, then write `requests.parquet`, `server.parquet`, `verdict.json`, `junit.xml` and
    `report.html`, each as a whole, from the run's journals and record.

    `finished` says that nothing is missing from the journals; otherwise the verdict is INCONCLUSIVE at best.
    """
    record = folder.record
    transcripts = Transcripts(folder.transcripts)
    rows = judge_transcripts(
        transcripts,
        record.started_monotonic_seconds,
        record.policy.correctness,
        tokenizer_for(record.model),
        reference,
        connections,
        progress,
    )
    samples = load_server_samples(folder.server_samples, record.started_monotonic_seconds)
    write_requests_table(folder.requests_table, rows)
    write_server_table(folder.server_table, samples)
    facts = RunFacts(
        levels=record.policy.load.levels,
        has_baseline=any(phase.arm == BASELINE for phase in record.phases),
        reference_available=record.reference_available,
        running_batch=running_batches(rows, samples),
        cut_short=transcripts.damage or (None if finished else _why_unfinished(folder)),
        not_checked=record.not_checked,
        asks_about_all=record.reference_available and tokenizer_for(record.model) is not None,
        client=_client_reasons(record.client),
    )
    verdict = assess(rows, facts, record.policy)
    content = orjson.dumps(verdict.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
    write_bytes_atomically(folder.verdict, content + b"\n")
    write_bytes_atomically(folder.junit, junit_xml(verdict, record.run_id, duration_seconds(folder, rows)))
    write_bytes_atomically(folder.report, render_report(record, verdict, rows, samples).encode())
    return verdict


@contextmanager
def stored_reference(path: Path) -> Iterator[Scorer | None]:
    """The scores of an earlier judgement, read only; None when there are none to read."""
    try:
        journal = ScoreJournal(path, read_only=True)
    except (JournalError, OSError):
        # no score was stored, or none can be trusted: answers stay unscored, and the verdict says so
        yield None
        return
    with journal:
        yield StoredReference(journal)


def tokenizer_for(model: str | None) -> Tokenizer | None:
    """The tokenizer of a model we know the template of; None for others, whose tokens cannot be scored."""
    if model != EMBEDDED_MODEL:
        return None
    from pdwatch.gate.tokenizer import EmbeddedTokenizer

    return EmbeddedTokenizer()


def duration_seconds(folder: RunFolder, rows: Sequence[RequestRow]) -> float:
    """From the run's beginning to its end, or to its last request when it has no end."""
    record = folder.record
    if record.ended_unix_seconds is not None:
        return record.ended_unix_seconds - record.started_unix_seconds
    return _latest(row.ended_seconds for row in rows)


def _client_reasons(records: Sequence[ClientRecord]) -> dict[int, tuple[str, ...]]:
    """By level, why the load generator was the limit in any of its phases."""
    reasons: dict[int, tuple[str, ...]] = {}
    for record in records:
        told = tuple(f"{record.arm}: {reason}" for reason in record.reasons)
        if not record.is_valid and not told:
            told = (f"{record.arm}: it says no more",)
        reasons[record.level] = reasons.get(record.level, ()) + told
    return reasons


def _latest(seconds: Iterable[float]) -> float:
    return max(seconds, default=0.0)


def _why_unfinished(folder: RunFolder) -> str:
    record = folder.record
    if record.state is State.FAILED:
        return record.failure or "it failed"
    return f"it was stopped at stage `{record.stage}`"
