"""The strict reading is held against the official SDK itself, where that is installed (`pip install openai`)."""

from __future__ import annotations

from typing import Any

import pytest

from pdwatch.loadgen import assemble
from pdwatch.loadgen.strict import StrictReading

# the SDK hands values of a wrong type on to its caller, and the specification rules; it leaves surrogate halves apart.
LAXER = {"index_not_a_number", "arguments_object", "finish_is_object", "usage_is_a_number", "content_is_parts"}
UNJOINED = {"surrogates_split", "surrogates_split_in_arguments", "surrogate_alone"}


def sdk_reading(body: bytes) -> dict[str, Any]:
    openai = pytest.importorskip("openai")
    http = pytest.importorskip("httpx2")
    state = pytest.importorskip("openai.lib.streaming.chat").ChatCompletionStreamState()
    answer = http.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    client = openai.OpenAI(
        api_key="none",
        base_url="http://127.0.0.1:9/v1",
        max_retries=0,
        http_client=http.Client(transport=http.MockTransport(lambda request: answer)),
    )
    try:
        with client.chat.completions.create(model="m", messages=[], stream=True) as stream:
            for chunk in stream:
                if chunk.object == "chat.completion.chunk":
                    state.handle_chunk(chunk)
        snapshot = state.current_completion_snapshot
    except Exception as error:  # whatever it raises is what a user of the SDK meets
        return {"fails": type(error).__name__}
    choice = snapshot.choices[0]
    return {
        "content": choice.message.content,
        "refusal": choice.message.refusal,
        "calls": [
            (call.id or None, call.function.name or "", call.function.arguments or "")
            for call in choice.message.tool_calls or ()
        ],
        "finish_reason": choice.finish_reason,
        "usage": None if snapshot.usage is None else snapshot.usage.completion_tokens,
    }


def told(strict: StrictReading) -> dict[str, Any]:
    return {
        "content": strict.content,
        "refusal": strict.refusal,
        "calls": [(call.id, call.name, call.arguments_text) for call in strict.tool_calls],
        "finish_reason": strict.finish_reason,
        "usage": (strict.usage or {}).get("completion_tokens"),
    }


def test_the_sdk_reads_the_same(cases, record) -> None:
    pytest.importorskip("openai", reason="the official SDK is no dependency; install it to hold the reading against it")
    for case in cases:
        if "strict" not in case.expected or not case.is_streamed or case.group == "completions" or case.name in LAXER:
            continue
        transcript = record(case)
        strict = assemble(transcript).strict
        sdk = sdk_reading(transcript.body)
        if strict.error is not None:
            assert "fails" in sdk, case.name
        elif case.name not in UNJOINED:
            assert sdk == told(strict), case.name
