"""Builders of judged rows and of run folders with real journals, without any server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pdwatch.correctness import Finding, Judgement, Outcome, Rung, Signature, differ
from pdwatch.correctness.divergence import DivergenceEvidence
from pdwatch.gate.policy import GatePolicy, load_policy
from pdwatch.gate.rows import RequestRow, TopToken
from pdwatch.gate.run_folder import PhaseRecord, RunFolder
from pdwatch.gate.tokenizer import EmbeddedTokenizer
from pdwatch.loadgen import JournalWriter, Label, Phase, Plan, Transcript, make_task
from pdwatch.loadgen import Outcome as TransportOutcome
from pdwatch.loadgen.body import Body
from pdwatch.loadgen.sources.chat import chat_body

HOSTILE = "</script><script>alert('x')</script>\x00\x1b[31m\u202e\u200b"


def make_row(
    number: int,
    *,
    arm: str = "candidate",
    level: int = 4,
    phase: int = 1,
    label: str = "measured",
    outcome: Outcome | None = Outcome.OK,
    signature: Signature | None = None,
    sent_seconds: float | None = None,
    tpot_seconds: float | None = 0.010,
    received: str | None = None,
) -> RequestRow:
    """A request that took 0.1 s to its first token and then 60 tokens; every fifth of a second by default."""
    request_id = f"{arm}-{phase}-{label}-{number}"
    sent = number * 0.2 if sent_seconds is None else sent_seconds
    ended = sent + 0.1 + (tpot_seconds or 0.0) * 60
    judgement = None
    if outcome is not None:
        difference = None if received is None else differ('f{"code": "ABC123"}', received)
        divergence = None
        if received is not None:
            divergence = DivergenceEvidence(
                3, 7, received, 65, "A", 9.1, None, False, 3, 1, 1, 40, text_before=HOSTILE, text_after="}"
            )
        findings = () if signature is None else (Finding(Rung.PLANTED, "value", signature, f"got {received}"),)
        judgement = Judgement(
            request_id,
            outcome,
            signature,
            findings,
            arm,
            level,
            phase,
            label,
            sent,
            ended,
            difference=difference,
            divergence=divergence,
        )
    return RequestRow(
        request_id=request_id,
        arm=arm,
        level=level,
        phase=phase,
        label=label,
        user=number % level,
        number=number,
        family="copy",
        transport="complete",
        transport_detail="",
        status=200,
        finish_reason="tool_calls",
        sent_seconds=sent,
        first_token_seconds=sent + 0.1,
        ended_seconds=ended,
        time_to_first_token_seconds=0.1,
        time_per_output_token_seconds=tpot_seconds,
        end_to_end_seconds=ended - sent,
        output_tokens=61,
        prompt_tokens=300,
        cached_tokens=128,
        sent_bytes=900,
        received_bytes=9_000,
        judgement=judgement,
        top_tokens=() if received is None else (TopToken("A", -0.01), TopToken(HOSTILE, -5.0)),
    )


@pytest.fixture
def row() -> Callable[..., RequestRow]:
    return make_row


@pytest.fixture
def hostile() -> str:
    """Text that a careless page would run, hide or turn around."""
    return HOSTILE


@pytest.fixture
def policy() -> GatePolicy:
    return load_policy(options={"load.levels": (1, 4), "load.window_seconds": 4.0, "validity.min_scored": 2})


@pytest.fixture
def recorded_run(tmp_path: Path, policy: GatePolicy) -> RunFolder:
    """A run folder as a killed gate leaves it: record, plan and transcripts, nothing derived."""
    folder = RunFolder.create(tmp_path / "run", policy, ("pdwatch", "gate"), embedded=True)
    url = "http://127.0.0.1:1"
    phases = tuple(
        Phase(index=index, arm="candidate", level=level, warmup_seconds=0, window_seconds=4)
        for index, level in enumerate(policy.load.levels)
    )
    plan = Plan(seed=1, targets={"candidate": url}, model="tiny-toolcaller", phases=phases)
    folder.update(
        stage="drive",
        model="tiny-toolcaller",
        phases=tuple(PhaseRecord.model_validate(phase.model_dump()) for phase in phases),
    )
    start = folder.record.started_monotonic_seconds
    with JournalWriter(folder.transcripts) as journal:
        for phase in phases:
            for number in range(4):
                journal.append(make_transcript(plan, phase, number, start + 1 + phase.index * 5 + number * 0.5))
    return folder


def make_transcript(plan: Plan, phase: Phase, number: int, sent_seconds: float) -> Transcript:
    """A request answered right, in SGLang's form: first token after 0.1 s, the last 0.64 s later."""
    task = make_task(plan.seed, plan.task_number(phase, Label.MEASURED, number), plan.workload)
    events: list[dict[str, object]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    if task.expected_text is not None:
        events.append({"choices": [{"index": 0, "delta": {"content": task.expected_text}}]})
    for index, call in enumerate(task.expected_calls):
        function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        entry = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        events.append({"choices": [{"index": 0, "delta": {"tool_calls": [entry]}}]})
    finish = "stop" if task.expected_text is not None else "tool_calls"
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    tokenizer = EmbeddedTokenizer()
    calls = [(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in task.expected_calls]
    answer = tokenizer.answer_ids(task.expected_text, calls)
    assert answer is not None
    usage = {"prompt_tokens": len(tokenizer.prompt_ids(task.messages, task.tools)), "completion_tokens": len(answer)}
    events.append({"choices": [], "usage": usage})
    common = {"id": "abc", "object": "chat.completion.chunk", "created": 1, "model": plan.model}
    bodies = [b"data: " + json.dumps(common | event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    times = [sent_seconds + 0.1 + 0.64 * index / (len(bodies) - 1) for index in range(len(bodies))]
    return Transcript(
        request_id=f"candidate-{phase.index}-measured-{number}",
        arm="candidate",
        level=phase.level,
        phase=phase.index,
        label=Label.MEASURED,
        user=0,
        number=number,
        dialect="sglang",
        target=plan.targets["candidate"],
        task=task,
        sent_body=chat_body(plan, task.messages, task.tools, 512, is_streamed=True).decode(),
        connect_seconds=None,
        sent_seconds=sent_seconds,
        sent_unix_seconds=1.0,
        status=200,
        response_headers={"content-type": "text/event-stream"},
        received=Body.from_chunks(zip(times, bodies, strict=True)),
        ended_seconds=times[-1],
        outcome=TransportOutcome.COMPLETE,
        outcome_detail="",
    )
