"""From transcripts to judged rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import local

from pdwatch.correctness import (
    Answerer,
    AnswerScore,
    Judge,
    Judgement,
    JudgeSettings,
    NonceIndex,
    NonceOwner,
    OwnAnswer,
    ReferenceUnavailable,
    Scorer,
    Scoring,
    Tokenizer,
    TokenNames,
)
from pdwatch.gate.names import BASELINE
from pdwatch.gate.policy import CorrectnessPolicy
from pdwatch.gate.rows import MEASURED, RequestRow, TopToken
from pdwatch.loadgen import Assembled, JournalCorrupt, Transcript, assemble, measure, read_transcripts

Progress = Callable[[int], None]

# of the baseline's right answers, each so-many-th is scored by the reference; of the candidate's, all are.
CONTROL_EVERY = 4


class Transcripts:
    """The transcripts of a run, readable more than once; `damage` says why reading stopped early, if it did."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage: str | None = None

    def __iter__(self) -> Iterator[Transcript]:
        if not self._path.exists():
            return
        try:
            yield from read_transcripts(self._path)
        except JournalCorrupt as error:
            self.damage = str(error)


def judge_transcripts(
    transcripts: Transcripts,
    started_monotonic_seconds: float,
    policy: CorrectnessPolicy,
    tokenizer: Tokenizer | None,
    reference: Scorer | None,
    connections: int,
    progress: Progress,
) -> list[RequestRow]:
    """One row per request, in order of ending; measured ones are judged, `connections` at a time.

    Read twice: a leak is another request's nonce, so all nonces must be known first.
    """
    nonces = NonceIndex(
        NonceOwner(item.task.nonce, item.request_id, item.arm, item.sent_seconds, item.ended_seconds)
        for item in transcripts
        # tasks of a user's own file own no nonce
        if item.task is not None and item.task.nonce
    )
    recorder = _Recorder(reference) if reference is not None else None

    def judge_asking(scoring: Scoring) -> Judge:
        return Judge(nonces, tokenizer, recorder, JudgeSettings(policy.near_tie_nats, scoring))

    thorough, sparing = judge_asking(Scoring.ALL), judge_asking(Scoring.SUSPECTS)

    def work(transcript: Transcript, assembled: Assembled, row: RequestRow) -> RequestRow:
        if recorder is not None:
            recorder.forget()
        # a share of the control arm's right answers shows whether the reference agrees with a healthy build at all.
        spared = transcript.arm == BASELINE and transcript.number % CONTROL_EVERY
        judgement = (sparing if spared else thorough).judge(transcript, assembled)
        scores = [] if recorder is None else recorder.scores()
        return replace(row, judgement=judgement, top_tokens=_top_tokens(judgement, scores, tokenizer))

    rows: list[RequestRow] = []
    pending: list[Future[RequestRow] | RequestRow] = []
    with ThreadPoolExecutor(connections, thread_name_prefix="judge") as pool:
        for transcript in transcripts:
            assembled = assemble(transcript)
            row = request_row(transcript, assembled, started_monotonic_seconds)
            pending.append(pool.submit(work, transcript, assembled, row) if row.label == MEASURED else row)
            # a bounded queue keeps the raw streams of long runs out of memory
            while len(pending) > 4 * connections:
                rows.append(_result(pending.pop(0)))
                progress(len(rows))
        for item in pending:
            rows.append(_result(item))
            progress(len(rows))
    return rows


def request_row(transcript: Transcript, assembled: Assembled, started_monotonic_seconds: float) -> RequestRow:
    """The facts and metrics of one request, not yet judged."""
    metrics = measure(transcript, assembled)
    sent = transcript.sent_seconds - started_monotonic_seconds
    to_first = metrics.time_to_first_token_seconds
    details = (assembled.usage or {}).get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return RequestRow(
        request_id=transcript.request_id,
        arm=transcript.arm,
        level=transcript.level,
        phase=transcript.phase,
        label=transcript.label.value,
        user=transcript.user,
        number=transcript.number,
        family=None if transcript.task is None else transcript.task.family,
        transport=transcript.outcome.value,
        transport_detail=transcript.outcome_detail or "",
        status=transcript.status,
        finish_reason=assembled.finish_reason,
        sent_seconds=sent,
        first_token_seconds=None if to_first is None else sent + to_first,
        ended_seconds=transcript.ended_seconds - started_monotonic_seconds,
        time_to_first_token_seconds=to_first,
        time_per_output_token_seconds=metrics.time_per_output_token_seconds,
        end_to_end_seconds=metrics.end_to_end_seconds,
        output_tokens=metrics.output_tokens,
        prompt_tokens=metrics.prompt_tokens,
        cached_tokens=cached if type(cached) is int else None,
        sent_bytes=len(transcript.sent_body.encode("utf-8", errors="surrogateescape")),
        received_bytes=sum(len(data) for _, data in transcript.chunks),
    )


class _Recorder:
    """Passes questions on to a scorer and keeps what each thread was told, for the report's evidence."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._told = local()

    def score(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> AnswerScore:
        score = self._scorer.score(prompt_ids, answer_ids)
        self.scores().append(score)
        return score

    def own_answer(self, sent_body: str) -> OwnAnswer:
        if not isinstance(self._scorer, Answerer):
            raise ReferenceUnavailable("this reference only scores answers, it does not give its own")
        return self._scorer.own_answer(sent_body)

    def scores(self) -> list[AnswerScore]:
        if not hasattr(self._told, "scores"):
            self._told.scores = []
        scores: list[AnswerScore] = self._told.scores
        return scores

    def forget(self) -> None:
        self._told.scores = []


def _top_tokens(
    judgement: Judgement, scores: Sequence[AnswerScore], tokenizer: Tokenizer | None
) -> tuple[TopToken, ...]:
    divergence = judgement.divergence
    if divergence is None:
        return ()
    for score in scores:
        if divergence.position < len(score.positions):
            position = score.positions[divergence.position]
            if position.top[0][0] == divergence.reference_token:
                return tuple(TopToken(_token_text(tokenizer, token), logprob) for token, logprob in position.top)
    return ()


def _token_text(tokenizer: Tokenizer | None, token: int) -> str:
    return tokenizer.tokens_text([token]) if isinstance(tokenizer, TokenNames) else f"#{token}"


def _result(item: Future[RequestRow] | RequestRow) -> RequestRow:
    return item.result() if isinstance(item, Future) else item
