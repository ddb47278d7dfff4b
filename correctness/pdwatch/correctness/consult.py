"""Asking the reference about one answer: by the candidate's tokens or, failing that, by the right answer's; and where a
model's tokens are not known, by the reference's own answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pdwatch.correctness.divergence import DivergenceEvidence, find_divergence
from pdwatch.correctness.errors import ReferenceFailure
from pdwatch.correctness.own_answer import Answerer
from pdwatch.correctness.planted import check_planted
from pdwatch.correctness.score import AnswerScore, PositionScore, Scorer
from pdwatch.correctness.structure import examine
from pdwatch.correctness.tokens import Recovery, Tokenizer, tokens_text
from pdwatch.loadgen import Task

MAXIMUM_SCORED_TOKENS = 1_024


@dataclass(frozen=True, slots=True)
class Consultation:
    """What the reference says.

    `reason` is set when it says nothing. Otherwise `disagrees` tells whether it would not have given this answer, near
    ties granted, and `divergence` shows the position, where one is known.
    """

    disagrees: bool = False
    divergence: DivergenceEvidence | None = None
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Consultant:
    """A reference with what is needed to put a question to it."""

    reference: Scorer
    tokenizer: Tokenizer
    near_tie_nats: float

    def consult(
        self, prompt_ids: Sequence[int], recovery: Recovery, expected_ids: Sequence[int] | None, wrong: bool
    ) -> Consultation:
        """Compare an answer with the reference's.

        `expected_ids` are the right answer's tokens where a task determines it, `wrong` says that the received answer
        is another one.
        """
        try:
            if recovery.exact:
                return self._by_tokens(prompt_ids, recovery.ids)
            if wrong and expected_ids is not None:
                return self._by_expected(prompt_ids, recovery, expected_ids)
        except ReferenceFailure as error:
            return Consultation(reason=str(error))
        return Consultation(reason=recovery.reason)

    def _by_tokens(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Consultation:
        # the first divergence decides, so the beginning of an endless answer is enough when it holds one.
        score = self.reference.score(prompt_ids, ids[:MAXIMUM_SCORED_TOKENS])
        divergence = self._divergence(score)
        if divergence is None or divergence.benign:
            if len(ids) > MAXIMUM_SCORED_TOKENS:
                reason = f"the answer has {len(ids)} tokens, and the first {MAXIMUM_SCORED_TOKENS} agree"
                return Consultation(reason=reason)
            return Consultation(divergence=divergence)
        return Consultation(disagrees=True, divergence=divergence, detail=_describe(divergence))

    def _by_expected(self, prompt_ids: Sequence[int], recovery: Recovery, expected: Sequence[int]) -> Consultation:
        """Score the right answer instead: where the reference gives it without a near-tie, no healthy run strays.

        The part of the candidate's tokens that is certain may show where it strays; then only the positions up to
        there need to hold.
        """
        score = self.reference.score(prompt_ids, expected[:MAXIMUM_SCORED_TOKENS])
        stray = _first_difference(recovery.ids, expected)
        needed = score.positions if stray is None else score.positions[:stray]
        if any(position.token != position.argmax for position in needed):
            return Consultation(reason=f"{recovery.reason}, and the reference does not give the right answer itself")
        if stray is not None:
            strayed = score.positions[stray]
            tokens = (*needed, _as_emitted(strayed, recovery.ids[stray]))
            divergence = self._divergence(AnswerScore(tokens))
            if divergence is None or divergence.benign:
                return Consultation(reason=f"{recovery.reason}, after a benign divergence")
            return Consultation(disagrees=True, divergence=divergence, detail=_describe(divergence))
        margin = min(position.margin_nats for position in needed)
        if margin <= self.near_tie_nats:
            return Consultation(reason=f"{recovery.reason}, and a near-tie ({margin:.2f} nats) might explain it")
        detail = f"the reference gives the right answer, {margin:.2f} nats ahead of any other at every token"
        return Consultation(disagrees=True, detail=detail)

    def _divergence(self, score: AnswerScore) -> DivergenceEvidence | None:
        return find_divergence(score, self.near_tie_nats, partial(tokens_text, self.tokenizer))


@dataclass(frozen=True, slots=True)
class FreeRunningConsultant:
    """A reference that is asked for its own answer, for a model whose tokens are not known."""

    reference: Answerer
    near_tie_nats: float

    def consult(self, task: Task, sent_body: str, prompt_text: str) -> Consultation:
        """Hold the reference's own answer beside a wrong one.

        It passes the same checks of form and values: a healthy engine would not have given the wrong one, unless
        somewhere in the right one stands a near-tie. It fails them too: the model is wrong.
        """
        try:
            own = self.reference.own_answer(sent_body)
        except ReferenceFailure as error:
            return Consultation(reason=str(error))
        structure = examine(own.content, own.calls, task.tools, prompt_text)
        seen = (*structure.findings, *check_planted(task, own.content, structure.calls))
        if any(finding.signature is not None for finding in seen):
            return Consultation()
        right = "the reference answers the same request right"
        if own.margin_nats is None:
            return Consultation(disagrees=True, detail=f"{right}; by which margin is not known")
        if own.margin_nats <= self.near_tie_nats:
            return Consultation(reason=f"{right}, and a near-tie ({own.margin_nats:.2f} nats) might explain it")
        return Consultation(
            disagrees=True, detail=f"{right}, {own.margin_nats:.2f} nats or more ahead of any other at every token"
        )


def _first_difference(prefix: Sequence[int], expected: Sequence[int]) -> int | None:
    pairs = enumerate(zip(prefix, expected[:MAXIMUM_SCORED_TOKENS], strict=False))
    return next((index for index, (left, right) in pairs if left != right), None)


def _as_emitted(position: PositionScore, token: int) -> PositionScore:
    """The same position with another token; beyond the stored ones its log-probability is at most the last's."""
    logprob = next((logprob for known, logprob in position.top if known == token), position.top[-1][1])
    return PositionScore(token, logprob, position.top)


def _describe(divergence: DivergenceEvidence) -> str:
    rank = "beyond the reference's top 20" if divergence.rank is None else f"rank {divergence.rank}"
    return (
        f"output token {divergence.position} is {divergence.token_text!r} ({rank}), {divergence.delta_nats:.2f} nats"
        f" below the reference's {divergence.reference_text!r}"
    )
