"""Rung 2: does the response keep the protocol, and do its own counts agree with what was received?"""

from __future__ import annotations

import json
from typing import Any

from pdwatch.correctness.difference import bytes_missing
from pdwatch.correctness.excerpt import excerpt
from pdwatch.correctness.outcome import Finding, Rung, Signature
from pdwatch.correctness.tokens import Recovery
from pdwatch.loadgen import Assembled

MAXIMUM_DEFECTS = 8

# lawful, or promised by nobody: what was promised and is missing makes the transport outcome "truncated".
_LAWFUL = ("content_and_calls", "name_split", "no_usage", "no_done")
_SIGNATURES = {"no_finish_reason": Signature.TRUNCATED, "in_band_error": Signature.ERROR}


def check_protocol(assembled: Assembled) -> tuple[Finding, ...]:
    """The stream's defects, among them a finish_reason that contradicts the content; an aborted request."""
    findings = []
    aborted = assembled.finish_reason == "abort"
    if aborted:
        findings.append(Finding(Rung.WIRE, "aborted", Signature.ERROR, "the server aborted the request"))
    for defect in assembled.defects[:MAXIMUM_DEFECTS]:
        if aborted and defect.code == "unknown_finish_reason":
            continue
        signature = None if defect.code in _LAWFUL else _SIGNATURES.get(defect.code, Signature.PROTOCOL)
        findings.append(Finding(Rung.WIRE, defect.code, signature, excerpt(defect.detail), {"count": defect.count}))
    return tuple(findings)


def check_early_length(assembled: Assembled, sent_body: str) -> Finding | None:
    """A finding when the answer ends with finish_reason "length" before the length that was asked for.

    The tokens of such an answer are all the reference's own, so no later rung would see that it was cut.
    """
    if assembled.finish_reason != "length":
        return None
    body = json.loads(sent_body)
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    got = assembled.usage_count("completion_tokens")
    if not isinstance(limit, int) or got is None or got >= limit:
        return None
    detail = f"finish_reason is length after {got} tokens, and {limit} were allowed"
    return Finding(Rung.WIRE, "early_length", Signature.TRUNCATED, detail, {"received": got, "allowed": limit})


def check_prompt_count(assembled: Assembled, prompt_tokens: int) -> Finding | None:
    """A finding when the server read another prompt than the one rendered here: template or tokenizer drift."""
    counted = assembled.usage_count("prompt_tokens")
    if counted is None or counted == prompt_tokens:
        return None
    detail = f"the server counted {counted} prompt tokens where the template gives {prompt_tokens}"
    return _protocol("prompt_drift", detail, counted=counted, rendered=prompt_tokens)


def check_lost_tokens(recovery: Recovery) -> Finding | None:
    """A finding when the server counted more tokens than the received answer renders to."""
    if recovery.lost_tokens == 0:
        return None
    detail = f"the server counted {recovery.lost_tokens} more tokens than were received"
    return _lost(detail, lost_tokens=recovery.lost_tokens)


def check_lost_bytes(
    assembled: Assembled, expected_text: str, received_text: str, expected_tokens: int
) -> Finding | None:
    """A finding when the received answer is the expected one with bytes dropped, and the server counted all of it.

    This also works where the dropped bytes broke the JSON and the rest has no token form any more.
    """
    if assembled.usage_count("completion_tokens") != expected_tokens:
        return None
    missing = bytes_missing(expected_text, received_text)
    if missing is None:
        return None
    detail = f"{missing} bytes of the right answer are missing, and the server counted all its {expected_tokens} tokens"
    return _lost(detail, lost_bytes=missing)


def _lost(detail: str, **evidence: Any) -> Finding:
    return Finding(Rung.WIRE, "lost_bytes", Signature.LOST_BYTES, detail, evidence)


def _protocol(code: str, detail: str, **evidence: Any) -> Finding:
    return Finding(Rung.WIRE, code, Signature.PROTOCOL, detail, evidence)
