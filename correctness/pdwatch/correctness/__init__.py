"""pdwatch.correctness: tells corrupt answers from right ones, wrong ones and harmless floating-point noise."""

from __future__ import annotations

from pdwatch.correctness.bounds import (
    Interval,
    clopper_pearson,
    lower_bound,
    requests_needed,
    statement,
    upper_bound,
)
from pdwatch.correctness.bursts import Burst, merge_bursts
from pdwatch.correctness.difference import ByteRange, Difference, differ
from pdwatch.correctness.divergence import NEAR_TIE_NATS, DivergenceEvidence
from pdwatch.correctness.errors import (
    BoundsError,
    CorrectnessError,
    JournalError,
    NotStored,
    ReferenceFailure,
    ReferenceMismatch,
    ReferenceRefused,
    ReferenceUnavailable,
    StrictJsonError,
)
from pdwatch.correctness.excerpt import excerpt
from pdwatch.correctness.facts import EngineFacts, FactMismatch, read_facts
from pdwatch.correctness.judge import Judge, JudgeSettings, Scoring, judge
from pdwatch.correctness.level import LevelSummary, dominant_signature, first_corrupt_level, summarise
from pdwatch.correctness.nonces import NonceIndex, NonceOwner
from pdwatch.correctness.outcome import (
    PRECEDENCE,
    Finding,
    Judgement,
    Outcome,
    Rung,
    Signature,
    most_specific,
)
from pdwatch.correctness.own_answer import Answerer, OwnAnswer
from pdwatch.correctness.reference import Reference, ReferenceStatistics, StoredReference
from pdwatch.correctness.score import AnswerScore, PositionScore, Scorer
from pdwatch.correctness.score_journal import JOURNAL_NAME, ScoreJournal
from pdwatch.correctness.tokens import AnswerForms, Recovery, Tokenizer, TokenNames, recover

__all__ = [
    "JOURNAL_NAME",
    "NEAR_TIE_NATS",
    "PRECEDENCE",
    "AnswerForms",
    "AnswerScore",
    "Answerer",
    "BoundsError",
    "Burst",
    "ByteRange",
    "CorrectnessError",
    "Difference",
    "DivergenceEvidence",
    "EngineFacts",
    "FactMismatch",
    "Finding",
    "Interval",
    "JournalError",
    "Judge",
    "JudgeSettings",
    "Judgement",
    "LevelSummary",
    "NonceIndex",
    "NonceOwner",
    "NotStored",
    "Outcome",
    "OwnAnswer",
    "PositionScore",
    "Recovery",
    "Reference",
    "ReferenceFailure",
    "ReferenceMismatch",
    "ReferenceRefused",
    "ReferenceStatistics",
    "ReferenceUnavailable",
    "Rung",
    "ScoreJournal",
    "Scorer",
    "Scoring",
    "Signature",
    "StoredReference",
    "StrictJsonError",
    "TokenNames",
    "Tokenizer",
    "clopper_pearson",
    "differ",
    "dominant_signature",
    "excerpt",
    "first_corrupt_level",
    "judge",
    "lower_bound",
    "merge_bursts",
    "most_specific",
    "read_facts",
    "recover",
    "requests_needed",
    "statement",
    "summarise",
    "upper_bound",
]
