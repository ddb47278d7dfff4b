"""An answer's tokens as the reference scores them, and the reading of SGLang's response that holds the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pdwatch.correctness.errors import ReferenceUnavailable
from pdwatch.correctness.excerpt import excerpt

TOP_TOKENS = 20
# stored and judged with the same digits, so that a judgement redone from the journal is the same.
DECIMALS = 5
FLOOR_NATS = -1e9


@dataclass(frozen=True, slots=True)
class PositionScore:
    """One emitted token given all tokens before it. `top` are the reference's likeliest (token, log-probability) pairs,
    likeliest first; log-probabilities are in nats."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @property
    def argmax(self) -> int:
        """The reference's greedy token; on an exact tie the emitted one, for either is the reference's choice."""
        token, best = self.top[0]
        return self.token if (self.token, best) in self.top else token

    @property
    def delta_nats(self) -> float:
        """logprob(argmax) − logprob(token); 0 for the argmax itself."""
        return max(0.0, self.top[0][1] - self.logprob)

    @property
    def rank(self) -> int | None:
        """1-based place among the stored top tokens, None beyond."""
        return next((place for place, (token, _) in enumerate(self.top, 1) if token == self.token), None)

    @property
    def margin_nats(self) -> float:
        """Distance between the likeliest and the second token; infinite when only one is stored."""
        return self.top[0][1] - self.top[1][1] if len(self.top) > 1 else math.inf


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """The scores of an answer, position by position."""

    positions: tuple[PositionScore, ...]


class Scorer(Protocol):
    """What scores answers: a live reference or a stored one."""

    def score(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> AnswerScore:
        """Score `answer_ids` after `prompt_ids`. Raises ReferenceFailure."""
        ...


def read_scores(payload: Any, answer_ids: Sequence[int]) -> AnswerScore:
    """Scores from SGLang's `meta_info` of a /generate that started at the last prompt token.

    `input_token_logprobs` is `[[null, id, text], [logprob, id, text], …]`, its first entry the last prompt token;
    `input_top_logprobs` stands beside it with null first. Raises ReferenceUnavailable for anything else: a server that
    answers otherwise is no reference.
    """
    try:
        meta = payload["meta_info"]
        chosen = meta["input_token_logprobs"]
        top = meta["input_top_logprobs"]
        if len(chosen) != len(answer_ids) + 1 or len(top) != len(chosen):
            raise ValueError(f"{len(chosen)} and {len(top)} entries for {len(answer_ids)} tokens and the one before")
        rows = zip(answer_ids, chosen[1:], top[1:], strict=True)
        return AnswerScore(tuple(_position(token, entry, row) for token, entry, row in rows))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        detail = excerpt(f"{type(error).__name__}: {error}")
        raise ReferenceUnavailable(
            f"the reference's /generate does not answer in SGLang's form ({detail}): use an SGLang server"
        ) from error


def _position(token: int, entry: Any, row: Any) -> PositionScore:
    if entry[1] != token:
        raise ValueError(f"token {entry[1]!r} scored where {token} was sent")
    pairs = sorted(((_integer(item[1]), read_logprob(item[0])) for item in row[:TOP_TOKENS]), key=lambda pair: -pair[1])
    if not pairs:
        raise ValueError("no top log-probabilities")
    return PositionScore(token, read_logprob(entry[0]), tuple(pairs))


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"token id {value!r}")
    return value


def read_logprob(value: Any) -> float:
    """A log-probability in nats as a server tells it. Raises ValueError for what is none."""
    # JSON has no −∞, so a token of probability 0 comes as null.
    if value is None:
        return FLOOR_NATS
    # a hair above 0 is rounding; NaN compares false and is refused.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value <= 1e-3:
        raise ValueError(f"log-probability {value!r}")
    return max(round(float(value), DECIMALS), FLOOR_NATS)
