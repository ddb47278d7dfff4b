"""Answers that real SGLang gave, in the framing it gave them in; see tests/data/sglang/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import Outcome, assemble

STREAMS = Path(__file__).parents[2] / "data" / "sglang" / "streams"
STREAM, JSON, OCTETS = "text/event-stream", "application/json", "application/octet-stream"


def framed(name: str, status: str, kind: str) -> bytes:
    body = (STREAMS / f"{name}.body").read_bytes()
    head = f"HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-type: {kind}\r\n"
    if kind != STREAM or status != "200 OK":
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    events = [part + b"\n\n" for part in body.split(b"\n\n") if part]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("name", "status", "kind", "expected"),
    [
        ("chat_stream", "200 OK", STREAM, {"is_streamed": True}),
        # asked for without usage.
        ("chat_stream_logprobs", "200 OK", STREAM, {"is_streamed": True, "told": 4, "defects": {"no_usage": 1}}),
        ("chat_plain", "200 OK", JSON, {}),
        # the router sends some whole answers on under another type.
        ("chat_plain_logprobs", "200 OK", OCTETS, {"defects": {"not_json": 1}, "told": 4}),
        ("chat_direct_token_ids", "200 OK", JSON, {"told": 1}),
        ("err_too_long_direct", "400 Bad Request", JSON, {"outcome": Outcome.HTTP_ERROR}),
        # answers to other questions hold no choice.
        ("generate_stream", "200 OK", STREAM, {"is_streamed": True, "outcome": Outcome.EMPTY}),
        ("generate_score", "200 OK", JSON, {"outcome": Outcome.EMPTY}),
        ("models", "200 OK", "text/plain; charset=utf-8", {"outcome": Outcome.EMPTY}),
        ("flush", "200 OK", "text/plain", {"outcome": Outcome.EMPTY}),
    ],
)
def test_recorded(make_case, record, name: str, status: str, kind: str, expected: dict[str, Any]) -> None:
    is_streamed = expected.get("is_streamed", False)
    asked = {"is_streamed": is_streamed, "promises_usage": "no_usage" not in expected.get("defects", {})}
    transcript = record(make_case(name, framed(name, status, kind), asked))
    outcome = expected.get("outcome", Outcome.COMPLETE)
    assert transcript.outcome is outcome
    got = assemble(transcript)
    if outcome is Outcome.COMPLETE:
        assert {defect.code: defect.count for defect in got.defects} == expected.get("defects", {})
        assert got.strict.error is None
        assert got.strict.content == got.content
        assert sum(count for count in got.output_token_counts if count > 0) == expected.get("told", 0)
