"""Rung 4: are the planted values there, exactly, and nobody else's?

A task's answer is determined to the last byte, so any other value is wrong, and every request carries a nonce that no
other request's answer may hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pdwatch.correctness.excerpt import excerpt
from pdwatch.correctness.matching import FieldMismatch, assign, mismatches
from pdwatch.correctness.nonces import NonceIndex
from pdwatch.correctness.outcome import Finding, Rung, Signature
from pdwatch.correctness.structure import ReceivedCall
from pdwatch.loadgen import ExpectedCall, Task

MAXIMUM_FINDINGS = 8


def check_planted(task: Task, content: str, calls: Sequence[ReceivedCall]) -> tuple[Finding, ...]:
    """Compare an answer with the task's; empty when it is right to the last value."""
    if task.expected_calls:
        findings = _check_calls(task.expected_calls, calls)
        if content.strip():
            findings.append(_wrong("unexpected_text", f"text beside the calls: {excerpt(content)!r}"))
    elif task.expected_text is not None:
        findings = _check_text(task.expected_text, content, calls)
    else:
        return ()
    if task.nonce and task.nonce not in content + "".join(call.arguments_text for call in calls):
        findings.append(_wrong("nonce_missing", f"the request's nonce {task.nonce} is not in the answer"))
    return tuple(findings[:MAXIMUM_FINDINGS])


def check_leaks(
    nonces: NonceIndex,
    task: Task,
    texts: Sequence[str],
    prompt_text: str,
    arm: str,
    sent_seconds: float,
    ended_seconds: float | None,
) -> tuple[Finding, ...]:
    """A leak finding for each other request whose nonce stands in `texts`."""
    findings = []
    for nonce in nonces.foreign("\n".join(texts), task.nonce, prompt_text)[:MAXIMUM_FINDINGS]:
        owner = nonces.owner(nonce, arm, sent_seconds, ended_seconds)
        together = owner.in_flight_with(sent_seconds, ended_seconds)
        when = "in flight at the same time" if together else "not in flight at the same time"
        detail = f"the answer holds nonce {nonce} of request {owner.request_id} ({owner.arm}, {when})"
        evidence = {
            "nonce": nonce,
            "owner_request_id": owner.request_id,
            "owner_arm": owner.arm,
            "in_flight_together": together,
        }
        findings.append(Finding(Rung.PLANTED, "foreign_nonce", Signature.LEAK, detail, evidence))
    return tuple(findings)


def _check_calls(expected: Sequence[ExpectedCall], received: Sequence[ReceivedCall]) -> list[Finding]:
    findings = []
    pairs = assign(
        [(call.name, call.arguments) for call in expected], [(call.name, call.arguments) for call in received]
    )
    for row, column in pairs:
        if row is None and column is not None:
            findings.append(_wrong("unexpected_call", f"a call of {excerpt(received[column].name)!r} nobody asked for"))
        elif row is not None and column is None:
            findings.append(_wrong("missing_call", f"no call of {expected[row].name}"))
        elif row is not None and column is not None:
            findings += _check_call(expected[row], received[column])
    order = [column for row, column in sorted(pairs, key=_row) if row is not None and column is not None]
    if not findings and order != sorted(order):
        detail = f"all calls are right but come in the order {order}"
        findings.append(Finding(Rung.PLANTED, "call_order", None, detail, {"order": order}))
    return findings


def _row(pair: tuple[int | None, int | None]) -> int:
    return -1 if pair[0] is None else pair[0]


def _check_call(expected: ExpectedCall, received: ReceivedCall) -> list[Finding]:
    findings = []
    if received.name != expected.name:
        findings.append(_wrong("wrong_name", f"called {excerpt(received.name)!r} instead of {expected.name}"))
    if received.arguments is None:
        findings.append(_wrong("no_values", f"the arguments of {expected.name} hold no values to compare"))
        return findings
    return findings + [
        _value_finding(expected.name, mismatch) for mismatch in mismatches(expected.arguments, received.arguments)
    ]


def _value_finding(name: str, mismatch: FieldMismatch) -> Finding:
    path = excerpt(mismatch.path, 60)
    if mismatch.missing:
        return _wrong("missing_field", f"{name} {path} is missing")
    received = excerpt(_json(mismatch.received))
    if mismatch.unexpected:
        return _wrong("unexpected_field", f"{name} {path} = {received} was not asked for")
    expected = excerpt(_json(mismatch.expected))
    detail = f"{name} {path} is {received} instead of {expected}"
    return _wrong("wrong_value", detail, path=path, expected=expected, received=received)


def _check_text(expected: str, content: str, calls: Sequence[ReceivedCall]) -> list[Finding]:
    findings = []
    if calls:
        names = excerpt(", ".join(call.name for call in calls))
        findings.append(_wrong("called_when_told_not", f"called {names} where text was asked for"))
    if content != expected:
        findings.append(_wrong("wrong_text", f"the text is {excerpt(content)!r} instead of {excerpt(expected)!r}"))
    return findings


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _wrong(code: str, detail: str, **evidence: Any) -> Finding:
    return Finding(Rung.PLANTED, code, Signature.WRONG_VALUE, detail, evidence)


def expected_answer(task: Task) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """The task's right answer as content and calls with arguments text; None when the task does not determine it."""
    if task.expected_calls:
        return "", tuple((call.name, _arguments_text(call.arguments)) for call in task.expected_calls)
    return None if task.expected_text is None else (task.expected_text, ())


def _arguments_text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
