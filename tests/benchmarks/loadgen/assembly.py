"""What putting a stream together costs, framing excluded: CPU microseconds an event, the best of several rounds.

    python tests/benchmarks/loadgen/assembly.py

The quick way is what recording takes; the full way is what it falls back to, event by event.
"""

from __future__ import annotations

import json
import time
from typing import Any

from pdwatch.loadgen.assembly import assemble_body
from pdwatch.loadgen.body import Body

ROUNDS = 7
REPEATS = 60
HEADERS = {"content-type": "text/event-stream"}


def event(delta: dict[str, Any] | None, finish_reason: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    """An event as SGLang 0.5 writes it; no delta: the usage chunk."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
    chunk = {
        "id": "c4b89d0d108745dd96e31c922a924dfc",
        "object": "chat.completion.chunk",
        "created": 1796115485,
        "model": "tiny-toolcaller",
        "choices": [] if delta is None else [choice],
        **({} if usage is None else {"usage": usage}),
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def stream(deltas: list[dict[str, Any]], *, counts: bool = False) -> Body:
    """A stream of these deltas, one event a read; `counts`: with usage in each."""
    parts = [event({"role": "assistant", "content": ""})]
    parts += [event(delta, usage={"completion_tokens": n} if counts else None) for n, delta in enumerate(deltas)]
    parts += [event({}, "stop"), event(None, usage={"prompt_tokens": 9, "completion_tokens": len(deltas)})]
    parts.append(b"data: [DONE]\n\n")
    return Body.from_chunks((float(second), part) for second, part in enumerate(parts))


def microseconds(body: Body, *, is_quick: bool) -> float:
    """CPU an event, the best round's mean."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(REPEATS):
            assemble_body(body, HEADERS, is_quick=is_quick)
        best = min(best, time.process_time() - started)
    return best / REPEATS / len(body.ends) * 1e6


def main() -> None:
    """Print one line for each kind of stream."""
    opening = {"id": "call_1", "index": 0, "type": "function", "function": {"name": "record_event", "arguments": ""}}
    further = {"id": None, "index": 0, "type": "function", "function": {"name": None, "arguments": '\\"a東"'}}
    print(f"{'stream':<28}{'quick µs':>10}{'full µs':>10}")
    for tokens in (64, 256):
        text: list[dict[str, Any]] = [{"reasoning_content": None, "content": " word"}] * tokens
        calls: list[dict[str, Any]] = [{"tool_calls": [opening]}, *[{"tool_calls": [further]}] * (tokens - 1)]
        for name, body in (
            (f"text, {tokens} tokens", stream(text)),
            (f"a call, {tokens} tokens", stream(calls)),
            (f"usage in each, {tokens} tokens", stream(text, counts=True)),
        ):
            print(f"{name:<28}{microseconds(body, is_quick=True):>10.2f}{microseconds(body, is_quick=False):>10.2f}")


if __name__ == "__main__":
    main()
