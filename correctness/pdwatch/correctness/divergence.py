"""Rung 5: where an answer parts from the eager reference's, and whether a near-tie explains it.

The reference scores the candidate's own tokens (teacher forcing). At each position its argmax, given the candidate's
tokens before, is what its greedy run would emit there. Up to the first position d whose argmax is another token the
reference's free-running answer is the candidate's, token for token, so the forced comparison *is* the free-running one
up to and including d. Past d a free run says nothing more, but the forced one still does: each position is an
independent test of whether a healthy engine would have emitted this token here.

    delta = logprob(argmax) − logprob(token), in nats; rank = place of the token among the reference's top 20

A position is benign when the token is among the top 20 and delta ≤ near_tie_nats: reduction order under batching moves
logits by a quarter to a half (correctness.md §2.1), so such a flip shows nothing. Anything else a healthy engine does
not emit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pdwatch.correctness.outcome import Signature
from pdwatch.correctness.score import AnswerScore, PositionScore

NEAR_TIE_NATS = 0.5
CONTEXT_TOKENS = 24
# measured on the embedded deployment's faults, 30 to 144 tokens an answer: rows swapped in the sampler leave one
# unexplained position, at most 2.7 % of them; index keys or pages of another request leave 3.8 to 39 %.


@dataclass(frozen=True, slots=True)
class DivergenceEvidence:
    """The position that decides: the first that no near-tie explains, else the first that differs at all.

    `position` counts output tokens from 0. `rank` is 1-based, None beyond the stored top 20. `first_position` is where
    the reference's free run parts, `diverging_positions` how many positions differ, `unexplained_positions` how many
    of them no near-tie explains. Texts are raw: escape them.
    """

    position: int
    token: int
    token_text: str
    reference_token: int
    reference_text: str
    delta_nats: float
    rank: int | None
    benign: bool
    first_position: int
    diverging_positions: int
    unexplained_positions: int
    scored_positions: int
    text_before: str
    text_after: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def find_divergence(
    score: AnswerScore, near_tie_nats: float, tokens_text: Callable[[Sequence[int]], str]
) -> DivergenceEvidence | None:
    """Where `score`'s tokens part from the reference; None when every token is the reference's argmax."""
    diverging = [index for index, position in enumerate(score.positions) if position.token != position.argmax]
    if not diverging:
        return None
    unexplained = [index for index in diverging if not is_near_tie(score.positions[index], near_tie_nats)]
    index = unexplained[0] if unexplained else diverging[0]
    position = score.positions[index]
    tokens = [entry.token for entry in score.positions]
    return DivergenceEvidence(
        position=index,
        token=position.token,
        token_text=tokens_text([position.token]),
        reference_token=position.argmax,
        reference_text=tokens_text([position.argmax]),
        delta_nats=position.delta_nats,
        rank=position.rank,
        benign=not unexplained,
        first_position=diverging[0],
        diverging_positions=len(diverging),
        unexplained_positions=len(unexplained),
        scored_positions=len(score.positions),
        text_before=tokens_text(tokens[max(0, index - CONTEXT_TOKENS) : index]),
        text_after=tokens_text(tokens[index + 1 : index + 1 + CONTEXT_TOKENS]),
    )


def is_near_tie(position: PositionScore, near_tie_nats: float) -> bool:
    """True when the reference itself could as well have emitted this token."""
    return position.rank is not None and position.delta_nats <= near_tie_nats


def divergence_signature(evidence: DivergenceEvidence) -> Signature:
    """What an unexplained divergence looks like: at output token 0 `first_token`, else `wrong_value`.

    Whether the answer came out broken as well is for its form to say, not for its tokens.
    """
    return Signature.FIRST_TOKEN if evidence.position == 0 else Signature.WRONG_VALUE
