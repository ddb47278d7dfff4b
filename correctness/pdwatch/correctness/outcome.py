"""The vocabulary of a judgement: outcomes, signatures, findings, and which signature wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdwatch.correctness.difference import Difference
    from pdwatch.correctness.divergence import DivergenceEvidence


class Outcome(StrEnum):
    """What became of one request; every request gets exactly one, none is dropped."""

    OK = "ok"
    #: the tokens part from the reference's at a near-tie, as batching alone makes them do
    BENIGN_DIVERGENCE = "benign_divergence"
    #: the wrong answer is the reference's own answer too: the model's fault, not the engine's
    MODEL_ERROR = "model_error"
    CORRUPT = "corrupt"
    PROTOCOL = "protocol"
    ERROR = "error"
    #: the client itself went away
    CANCELLED = "cancelled"
    #: nothing could be said; the judgement's reason tells why
    UNSCORED = "unscored"


class Signature(StrEnum):
    """What a failure looks like. The order of the members is the order of precedence, most specific first."""

    LEAK = "leak"
    TRUNCATED = "truncated"
    ERROR = "error"
    LOST_BYTES = "lost_bytes"
    FIRST_TOKEN = "first_token"
    GARBLED = "garbled"
    WRONG_VALUE = "wrong_value"
    PROTOCOL = "protocol"
    #: a level's signature, given by the gate from its latencies, never a request's
    SLOW_DECODE = "slow_decode"


PRECEDENCE: tuple[Signature, ...] = tuple(Signature)


def most_specific(signatures: Iterable[Signature | None]) -> Signature | None:
    """The signature that names a failure on which several rungs spoke; None when none did."""
    given = {signature for signature in signatures if signature is not None}
    return next((signature for signature in PRECEDENCE if signature in given), None)


class Rung(StrEnum):
    """The evidence ladder, cheapest first."""

    TRANSPORT = "transport"
    WIRE = "wire"
    STRUCTURE = "structure"
    PLANTED = "planted"
    DIVERGENCE = "divergence"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rung saw.

    `code` is stable and meant for machines, `detail` is one printable line, `evidence` holds JSON values.
    A finding without a signature is a note: it never makes a request fail.
    """

    rung: Rung
    code: str
    signature: Signature | None
    detail: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "rung": self.rung.value,
            "code": self.code,
            "signature": None if self.signature is None else self.signature.value,
            "detail": self.detail,
            "evidence": dict(self.evidence),
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one request.

    `reason` says in one line why a request stayed unscored, None otherwise. `sent_seconds` and `ended_seconds` are
    the transcript's monotonic times, kept for clustering; `ended_seconds` is None when the end was not seen.
    """

    request_id: str
    outcome: Outcome
    signature: Signature | None
    findings: tuple[Finding, ...]
    arm: str
    level: int
    phase: int
    label: str
    sent_seconds: float
    ended_seconds: float | None
    reason: str | None = None
    #: whether the reference's log-probabilities took part in the verdict
    reference_used: bool = False
    divergence: DivergenceEvidence | None = None
    difference: Difference | None = None

    @property
    def measured(self) -> bool:
        """True when the request counts: sent inside a measured window."""
        return self.label == "measured"

    @property
    def corrupt(self) -> bool:
        return self.outcome is Outcome.CORRUPT

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready record with the same field names."""
        return {
            "request_id": self.request_id,
            "outcome": self.outcome.value,
            "signature": None if self.signature is None else self.signature.value,
            "findings": [finding.to_json() for finding in self.findings],
            "arm": self.arm,
            "level": self.level,
            "phase": self.phase,
            "label": self.label,
            "sent_seconds": self.sent_seconds,
            "ended_seconds": self.ended_seconds,
            "reason": self.reason,
            "reference_used": self.reference_used,
            "divergence": None if self.divergence is None else self.divergence.to_json(),
            "difference": None if self.difference is None else self.difference.to_json(),
        }
