"""Rung 1: did an answer arrive at all, and to its end?"""

from __future__ import annotations

from pdwatch.correctness.excerpt import excerpt
from pdwatch.correctness.outcome import Finding, Rung, Signature
from pdwatch.loadgen import Outcome as TransportOutcome
from pdwatch.loadgen import Transcript

# a stream that ends in good order for HTTP and lacks its end is silent: clients take it for an answer.
_SIGNATURES: dict[TransportOutcome, Signature] = {
    TransportOutcome.TRUNCATED: Signature.TRUNCATED,
    TransportOutcome.EMPTY: Signature.TRUNCATED,
    TransportOutcome.IN_BAND_ERROR: Signature.ERROR,
    TransportOutcome.HTTP_ERROR: Signature.ERROR,
    TransportOutcome.CONNECT_ERROR: Signature.ERROR,
    TransportOutcome.RESET: Signature.ERROR,
    TransportOutcome.TIMEOUT: Signature.ERROR,
}


def check_transport(transcript: Transcript) -> tuple[Finding, ...]:
    """A finding for anything but a complete or a cancelled response."""
    signature = _SIGNATURES.get(transcript.outcome)
    if signature is None:
        return ()
    detail = excerpt(transcript.outcome_detail) or transcript.outcome.value.replace("_", " ")
    evidence = {"status": transcript.status, "received_bytes": sum(len(data) for _, data in transcript.chunks)}
    return (Finding(Rung.TRANSPORT, transcript.outcome.value, signature, detail, evidence),)
