"""Doubles and builders: a byte tokenizer, tasks, streams as a server sends them, a reference with a known mind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pdwatch.correctness import AnswerScore, PositionScore
from pdwatch.loadgen import Assembled, ExpectedCall, Label, Task, Transcript, assemble
from pdwatch.loadgen import Outcome as TransportOutcome
from pdwatch.loadgen.body import Body

EOS, CALLS, CALL, ARGUMENT, END = 257, 261, 262, 263, 264
SPECIAL = {"<EOS>": EOS, "<CALLS>": CALLS, "<CALL>": CALL, "<ARG>": ARGUMENT, "<END>": END}


class ByteTokenizer:
    """One token a byte, special tokens from 256; the call form of the embedded model."""

    special_tokens: Mapping[str, int] = SPECIAL

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        return [256, *json.dumps([list(messages), list(tools or ())]).encode()]

    def answer_ids(self, content: str | None, calls: Sequence[tuple[str, str]]) -> list[int] | None:
        if content and calls:
            return None
        if not calls:
            return [*(content or "").encode("utf-8", "surrogatepass"), EOS]
        ids = [CALLS]
        for name, text in calls:
            try:
                arguments = json.loads(text)
            except ValueError:
                return None
            if json.dumps(arguments, ensure_ascii=False) != text:
                return None
            ids += [CALL, *name.encode()]
            for field, value in arguments.items():
                ids += [ARGUMENT, *f"{field}={json.dumps(value, ensure_ascii=False)}".encode()]
            ids.append(END)
        return [*ids, EOS]

    def tokens_text(self, tokens: Sequence[int]) -> str:
        names = {token: text for text, token in SPECIAL.items()}
        return "".join(names.get(token) or bytes([token]).decode("ascii", "replace") for token in tokens)


class KnownReference:
    """Scores as a model whose greedy answer is `greedy`: 0.01 nats lost on it, `gap_nats` more on anything else.

    `ranked` tells whether other tokens are among its top 20.
    """

    def __init__(self, greedy: Sequence[int], gap_nats: float = 8.0, ranked: bool = True) -> None:
        self.greedy = tuple(greedy)
        self.gap_nats = gap_nats
        self.ranked = ranked
        self.asked: list[tuple[int, ...]] = []

    def score(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> AnswerScore:
        self.asked.append(tuple(answer_ids))
        return AnswerScore(tuple(self._position(index, token) for index, token in enumerate(answer_ids)))

    def _position(self, index: int, token: int) -> PositionScore:
        best = self.greedy[index] if index < len(self.greedy) else EOS
        other = token if token != best and self.ranked else 300
        logprob = -0.01 if token == best else round(-0.01 - self.gap_nats, 5)
        return PositionScore(token, logprob, ((best, -0.01), (other, round(-0.01 - self.gap_nats, 5))))


TOOL = {
    "type": "function",
    "function": {
        "name": "record_event",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "count": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["code", "count"],
            "additionalProperties": False,
        },
    },
}
OTHER_TOOL = {
    "type": "function",
    "function": {"name": "cancel_order", "parameters": {"type": "object", "properties": {"who": {"type": "string"}}}},
}
ARGUMENTS = {"code": "NONCE7Q4X", "count": 9007199254740993, "tags": ["東京", "🚀"]}


def _task(
    calls: Sequence[tuple[str, Mapping[str, Any]]] | None = None,
    text: str | None = None,
    nonce: str = "NONCE7Q4X",
    number: int = 0,
) -> Task:
    if calls is None and text is None:
        calls = [("record_event", ARGUMENTS)]
    asks = "; ".join(f"call {name} with {json.dumps(arguments)}" for name, arguments in calls or ())
    return Task(
        task_id=f"task-{number}",
        family="copy",
        seed=1,
        number=number,
        nonce=nonce,
        messages=({"role": "user", "content": f"Please {asks or f'say {text}'}."},),
        tools=(TOOL, OTHER_TOOL),
        expected_calls=tuple(ExpectedCall(name, arguments) for name, arguments in calls or ()),
        expected_text=text,
        planted=(nonce,),
    )


def _stream(
    content: str | None = None,
    calls: Sequence[tuple[str, str]] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, int] | None = None,
) -> bytes:
    """A server-sent-event stream as SGLang writes it, JSON kept ASCII."""
    reason = finish_reason or ("tool_calls" if calls else "stop")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if content:
        deltas.append({"content": content})
    for index, (name, text) in enumerate(calls):
        head = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if usage is not None:
        chunks.append({"choices": [], "usage": dict(usage)})
    head = {"id": "r1", "object": "chat.completion.chunk", "model": "m"}
    events = [f"data: {json.dumps({**head, **chunk})}\n\n".encode() for chunk in chunks]
    return b"".join([*events, b"data: [DONE]\n\n"])


class Exchange:
    """A task with the answer that came back for it."""

    def __init__(self, task: Task, transcript: Transcript) -> None:
        self.task = task
        self.transcript = transcript
        self.assembled: Assembled = assemble(transcript)


def _exchange(
    task: Task | None = None,
    *,
    content: str | None = None,
    calls: Sequence[tuple[str, str]] | None = None,
    body: bytes | None = None,
    finish_reason: str | None = None,
    completion_tokens: int | None = None,
    prompt_tokens: int | None = None,
    outcome: TransportOutcome = TransportOutcome.COMPLETE,
    request_id: str = "request-1",
    sent_seconds: float = 10.0,
    ended_seconds: float = 11.0,
    arm: str = "candidate",
    sent_body: str = "{}",
) -> Exchange:
    """By default the right answer with honest counts; `completion_tokens` defaults to what the answer renders to."""
    task = task or _task()
    tokenizer = ByteTokenizer()
    if content is None and calls is None:
        content = task.expected_text
        calls = [(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in task.expected_calls]
    calls = calls or ()
    if completion_tokens is None:
        completion_tokens = len(tokenizer.answer_ids(content, calls) or ())
    if prompt_tokens is None:
        prompt_tokens = len(tokenizer.prompt_ids(task.messages, task.tools))
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    data = _stream(content, calls, finish_reason, usage) if body is None else body
    transcript = Transcript(
        request_id=request_id,
        arm=arm,
        level=4,
        phase=0,
        label=Label.MEASURED,
        user=0,
        number=task.number,
        dialect="sglang",
        target="http://127.0.0.1:1",
        task=task,
        sent_body=sent_body,
        connect_seconds=None,
        sent_seconds=sent_seconds,
        sent_unix_seconds=1_800_000_000.0,
        status=200,
        response_headers={"content-type": "text/event-stream"},
        received=Body.from_chunks([(sent_seconds + 0.1, data)]),
        ended_seconds=ended_seconds,
        outcome=outcome,
        outcome_detail="",
    )
    return Exchange(task, transcript)


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture
def make_task() -> Callable[..., Task]:
    return _task


@pytest.fixture
def make_exchange() -> Callable[..., Exchange]:
    return _exchange


@pytest.fixture
def known_reference() -> type[KnownReference]:
    return KnownReference


@pytest.fixture
def right_ids() -> list[int]:
    """Tokens of the default task's right answer."""
    ids = ByteTokenizer().answer_ids(None, [("record_event", json.dumps(ARGUMENTS, ensure_ascii=False))])
    assert ids is not None
    return ids
