"""The judge: climbs the ladder for one request and says what became of it.

Rungs in order: transport, wire, structure, planted values, divergence from the reference. A leak, a truncation, lost
bytes and an error are proof by themselves. A broken form or a wrong value is an engine's fault only when the reference
disagrees with it beyond a near-tie; when it agrees, the model is wrong, and without a reference nobody knows. Where the
model's tokens are not known, the reference is asked for its own answer to the same request instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from pdwatch.correctness.answer import Answer, take_apart
from pdwatch.correctness.consult import Consultant, Consultation, FreeRunningConsultant
from pdwatch.correctness.divergence import NEAR_TIE_NATS, divergence_signature
from pdwatch.correctness.nonces import NonceIndex
from pdwatch.correctness.outcome import Finding, Judgement, Outcome, Rung, Signature, most_specific
from pdwatch.correctness.own_answer import Answerer
from pdwatch.correctness.planted import check_leaks
from pdwatch.correctness.score import Scorer
from pdwatch.correctness.structure import request_text
from pdwatch.correctness.tokens import Tokenizer
from pdwatch.correctness.transport import check_transport
from pdwatch.correctness.wire import check_early_length, check_protocol
from pdwatch.loadgen import Assembled, Task, Transcript
from pdwatch.loadgen import Outcome as TransportOutcome

_PROOF = (Signature.LEAK, Signature.TRUNCATED, Signature.LOST_BYTES)
_COMPLAINTS = (Signature.GARBLED, Signature.WRONG_VALUE)
_NO_REFERENCE = "there is no reference to ask"


class Scoring(StrEnum):
    """Which answers the reference is asked about."""

    ALL = "all"
    #: only those that an earlier rung found something in, or whose right answer is not known
    SUSPECTS = "suspects"


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """`near_tie_nats` is the largest gap to the reference's argmax that a healthy engine shows."""

    near_tie_nats: float = NEAR_TIE_NATS
    scoring: Scoring = Scoring.ALL


class Judge:
    """Judges requests against one reference. Safe to use from several threads when the reference is."""

    def __init__(
        self,
        nonces: NonceIndex,
        tokenizer: Tokenizer | None = None,
        reference: Scorer | None = None,
        settings: JudgeSettings | None = None,
    ) -> None:
        self._nonces = nonces
        self._tokenizer = tokenizer
        self._settings = settings or JudgeSettings()
        self._consultant = (
            Consultant(reference, tokenizer, self._settings.near_tie_nats)
            if reference is not None and tokenizer is not None
            else None
        )
        self._free_running: FreeRunningConsultant | None = None
        if reference is not None and isinstance(reference, Answerer):
            self._free_running = FreeRunningConsultant(reference, self._settings.near_tie_nats)

    def judge(self, transcript: Transcript, assembled: Assembled, task: Task | None = None) -> Judgement:
        """The verdict on one request; `task` defaults to the transcript's. Never raises for what a server sent."""
        task = task or transcript.task
        findings = list(check_transport(transcript))
        prompt_text = "" if task is None else request_text(task.messages, task.tools)
        if task is not None:
            texts = [assembled.content or "", *(call.name + call.arguments_text for call in assembled.tool_calls)]
            span = (transcript.sent_seconds, transcript.ended_seconds)
            findings += check_leaks(self._nonces, task, texts, prompt_text, transcript.arm, *span)
        if transcript.outcome is not TransportOutcome.COMPLETE:
            return self._unfinished(transcript, findings)
        findings += check_protocol(assembled)
        early = check_early_length(assembled, transcript.sent_body)
        if early is not None:
            findings.append(early)
        if task is None:
            return self._conclude(transcript, findings, None, Consultation(reason="the request's task is not known"))
        answer, seen = take_apart(task, assembled, prompt_text, self._tokenizer)
        findings += seen
        given = {finding.signature for finding in findings}
        if given & {*_PROOF, Signature.ERROR}:
            said = Consultation(reason="proven without the reference")
        elif self._tokenizer is None:
            said = self._compare(given, task, transcript.sent_body, prompt_text)
        else:
            said = self._consult(findings, given, answer)
        return self._conclude(transcript, findings, answer, said)

    def judge_all(self, requests: Iterable[tuple[Transcript, Assembled]], connections: int = 1) -> Iterator[Judgement]:
        """Judge requests in order, `connections` at a time, so that as many questions wait at the reference."""
        with ThreadPoolExecutor(connections, thread_name_prefix="judge") as pool:
            pending: list[Future[Judgement]] = []
            for transcript, assembled in requests:
                pending.append(pool.submit(self.judge, transcript, assembled))
                if len(pending) > 4 * connections:
                    yield pending.pop(0).result()
            for future in pending:
                yield future.result()

    def _consult(self, findings: list[Finding], given: set[Signature | None], answer: Answer) -> Consultation:
        if self._consultant is None:
            return Consultation(reason=_NO_REFERENCE)
        if answer.prompt_ids is None:
            return Consultation(reason=answer.unscorable)
        suspect = any(finding.rung in (Rung.STRUCTURE, Rung.PLANTED) for finding in findings)
        if self._settings.scoring is Scoring.SUSPECTS and not suspect and answer.expected_text is not None:
            return Consultation(reason="the answer is right to the last value")
        wrong = bool(given & {*_COMPLAINTS})
        return self._consultant.consult(answer.prompt_ids, answer.recovery, answer.expected_ids, wrong)

    def _compare(self, given: set[Signature | None], task: Task, sent_body: str, prompt_text: str) -> Consultation:
        if self._free_running is None:
            return Consultation(reason=_NO_REFERENCE)
        if not given & {*_COMPLAINTS}:
            return Consultation(reason="only a wrong answer can be compared without a tokenizer")
        return self._free_running.consult(task, sent_body, prompt_text)

    def _unfinished(self, transcript: Transcript, findings: list[Finding]) -> Judgement:
        signature = most_specific(finding.signature for finding in findings)
        if signature in _PROOF:
            outcome = Outcome.CORRUPT
        elif transcript.outcome is TransportOutcome.CANCELLED:
            outcome = Outcome.CANCELLED
        else:
            outcome = Outcome.ERROR
        return _judgement(transcript, outcome, signature, findings)

    def _conclude(
        self, transcript: Transcript, findings: list[Finding], answer: Answer | None, said: Consultation
    ) -> Judgement:
        if said.disagrees:
            findings = [*findings, _disagreement(said)]
        given = {finding.signature for finding in findings}
        outcome = _outcome(given, said, known=answer is not None and answer.expected_text is not None)
        signature = {
            Outcome.CORRUPT: most_specific(finding.signature for finding in findings),
            Outcome.ERROR: Signature.ERROR,
            Outcome.PROTOCOL: Signature.PROTOCOL,
        }.get(outcome)
        return _judgement(
            transcript,
            outcome,
            signature,
            findings,
            reason=said.reason if outcome is Outcome.UNSCORED else None,
            reference_used=said.reason is None,
            divergence=said.divergence,
            difference=None if answer is None or outcome is Outcome.OK else answer.difference,
        )


def judge(
    transcript: Transcript,
    assembled: Assembled,
    task: Task | None,
    reference: Scorer | None,
    nonces: NonceIndex,
    tokenizer: Tokenizer | None = None,
) -> Judgement:
    """One verdict without keeping a Judge; settings are the defaults."""
    return Judge(nonces, tokenizer, reference).judge(transcript, assembled, task)


def _outcome(given: set[Signature | None], said: Consultation, *, known: bool) -> Outcome:
    """The outcome from what the rungs gave and the reference said; `known`: the task determines its answer."""
    if said.disagrees or given & {*_PROOF}:
        return Outcome.CORRUPT
    if Signature.ERROR in given:
        return Outcome.ERROR
    if Signature.PROTOCOL in given:
        return Outcome.PROTOCOL
    wrong = bool(given & {*_COMPLAINTS})
    if said.reason is not None:
        return Outcome.UNSCORED if wrong or not known else Outcome.OK
    if said.divergence is not None:
        return Outcome.BENIGN_DIVERGENCE
    return Outcome.MODEL_ERROR if wrong else Outcome.OK


def _disagreement(said: Consultation) -> Finding:
    if said.divergence is None:
        return Finding(Rung.DIVERGENCE, "reference_disagrees", None, said.detail)
    signature = divergence_signature(said.divergence)
    return Finding(Rung.DIVERGENCE, "diverges", signature, said.detail, {"position": said.divergence.position})


def _judgement(
    transcript: Transcript, outcome: Outcome, signature: Signature | None, findings: list[Finding], **more: object
) -> Judgement:
    return Judgement(
        request_id=transcript.request_id,
        outcome=outcome,
        signature=signature,
        findings=tuple(findings),
        arm=transcript.arm,
        level=transcript.level,
        phase=transcript.phase,
        label=transcript.label.value,
        sent_seconds=transcript.sent_seconds,
        ended_seconds=transcript.ended_seconds,
        **more,  # type: ignore[arg-type]  # the fields of Judgement, by name
    )
