"""The flat record of one request: what `requests.parquet`, the verdict and the report read."""

from __future__ import annotations

from dataclasses import dataclass

from pdwatch.correctness import Judgement, Outcome
from pdwatch.correctness.level import FAILED, SCORED

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class TopToken:
    """One of the reference's most likely tokens at a position; `logprob` in nats."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. Times are seconds since the run began; None is "no value".

    `judgement` is None for warm-up and cool-down, which are not judged. `top_tokens` are the reference's at the
    position where the answer diverges. All texts are untrusted.
    """

    request_id: str
    arm: str
    level: int
    phase: int
    label: str
    user: int
    number: int
    family: str | None
    transport: str
    transport_detail: str
    status: int | None
    finish_reason: str | None
    sent_seconds: float
    first_token_seconds: float | None
    ended_seconds: float
    time_to_first_token_seconds: float | None
    time_per_output_token_seconds: float | None
    end_to_end_seconds: float | None
    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    sent_bytes: int
    received_bytes: int
    judgement: Judgement | None = None
    top_tokens: tuple[TopToken, ...] = ()

    @property
    def measured(self) -> bool:
        """True when the request was sent inside a measured window."""
        return self.label == MEASURED

    @property
    def outcome(self) -> Outcome | None:
        """What the judge said; None when it was not asked."""
        return None if self.judgement is None else self.judgement.outcome

    @property
    def signature(self) -> str | None:
        """What the failure looks like; a failure without a signature goes by its outcome."""
        if self.judgement is None:
            return None
        if self.judgement.signature is not None:
            return self.judgement.signature.value
        return self.judgement.outcome.value if self.failing else None

    @property
    def scored(self) -> bool:
        """True when a verdict on the answer was reached."""
        return self.outcome in SCORED

    @property
    def failing(self) -> bool:
        """True when the request counts against the deployment."""
        return self.outcome in FAILED
