"""Plans with a source, and answers to go on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import Assembled, Plan, assemble_chunks
from pdwatch.loadgen.sources import Source, open_source

Call = tuple[str | None, str, str]


@pytest.fixture
def make_plan() -> Callable[..., Plan]:
    """A plan with one phase; keyword arguments are its fields."""

    def make(**fields: Any) -> Plan:
        return Plan(
            **{
                "seed": 7,
                "targets": {"candidate": "http://127.0.0.1:1", "baseline": "http://127.0.0.1:1"},
                "model": "m",
                "phases": [{"index": 0, "arm": "candidate", "level": 1}],
                **fields,
            }
        )

    return make


@pytest.fixture
def open_kind(make_plan: Callable[..., Plan]) -> Callable[..., Source]:
    """Opens a source of the given kind; keyword arguments are its configuration, `plan` fields of the plan."""

    def make(kind: str, plan: dict[str, Any] | None = None, **config: Any) -> Source:
        return open_source(make_plan(source={"kind": kind, **config}, **plan or {}))

    return make


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """Writes a JSONL file of the given values."""

    def write(values: Iterable[Any], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))
        return path

    return write


@pytest.fixture
def make_answer() -> Callable[..., Assembled]:
    """A complete answer with the given text, and calls as (id, name, arguments text)."""

    def make(content: str | None = None, calls: Iterable[Call] = ()) -> Assembled:
        entries = [
            {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (call_id, name, arguments) in enumerate(calls)
        ]
        delta = {"role": "assistant", "content": content} | ({"tool_calls": entries} if entries else {})
        chunk = {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
        data = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        return assemble_chunks([(1.0, data)], {"content-type": "text/event-stream"})

    return make
