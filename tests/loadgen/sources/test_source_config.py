"""Configurations: one line for each way of getting one wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from pdwatch.loadgen import Plan, PlanError
from pdwatch.loadgen.sources import SourceConfig, TextSource, ToolCallsSource

ANY = TypeAdapter[Any](SourceConfig)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"kind": "poetry"}, "does not match any of the expected tags"),
        ({"kind": "text", "shared": 1}, "Extra inputs are not permitted"),
        ({"kind": "text", "streamed_share": 1.5}, "less than or equal to 1"),
        ({"kind": "text", "fewest_words": 90, "most_words": 80}, "most_words is 80, less than fewest_words = 90"),
        ({"kind": "text", "min_tokens": 9, "max_tokens": 8}, "min_tokens is 9, more than max_tokens = 8"),
        ({"kind": "tool_calls", "over_long_share": 0.1}, "over_long_share is 0.1: give context_tokens"),
        (
            {"kind": "tool_calls", "long_context": {"share": 1, "fewest_tokens": 900, "most_tokens": 800}},
            "most_tokens is 800, less than fewest_tokens = 900",
        ),
        (
            {"kind": "tool_calls", "context_tokens": 2048, "long_context": {"share": 1}},
            "long_context of 32768 tokens leaves no room in context_tokens = 2048.*a token is a byte there: "
            "long contexts are for real servers",
        ),
        (
            {"kind": "tool_calls", "context_tokens": 2048, "shared_prefix": {"tokens": 2048}},
            "shared_prefix of 2048 tokens leaves no room",
        ),
        ({"kind": "tool_calls", "sessions": {"fewest_turns": 5}}, "most_turns is 4, less than fewest_turns = 5"),
        ({"kind": "bfcl", "slices": ["multi_turn_base"]}, "Input should be 'simple_python'"),
        ({"kind": "bfcl", "slices": []}, "at least 1 item"),
        ({"kind": "openai_requests"}, "Field required"),
        ({"kind": "mooncake", "path": "x", "order": "shuffled"}, "Extra inputs are not permitted"),
    ],
)
def test_bad_configurations(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ANY.validate_python(config)


def test_the_default_is_the_plain_tool_calls(make_plan) -> None:
    assert make_plan().source == ToolCallsSource()
    assert make_plan(source={"kind": "text"}).source == TextSource()


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "tool_calls", "sessions": {}, "shared_prefix": {}, "long_context": {"share": 0.5}},
        {"kind": "text", "endpoint": "completions"},
        {"kind": "openai_requests", "path": "a b.jsonl"},
        {"kind": "sharegpt", "path": "x.json", "turns": "all"},
        {"kind": "bfcl", "folder": "data", "slices": ["irrelevance", "live_simple"]},
        {"kind": "mooncake", "path": "x.jsonl"},
    ],
    ids=lambda config: str(config["kind"]),
)
def test_plans_keep_their_source(make_plan, config: dict[str, Any]) -> None:
    plan = make_plan(source=config)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("field", ["ignore_eos", "min_tokens"])
def test_extensions_need_their_dialect(open_kind, field: str) -> None:
    assert open_kind("text", **{field: 1})
    with pytest.raises(PlanError, match=f"source.{field} is an extension that the dialect 'openai' does not know"):
        open_kind("text", {"dialect": "openai"}, **{field: 1})


def test_configurations_load_nothing_heavy() -> None:
    heavy = "{'gevent', 'locust', 'numpy', 'pyarrow', 'scipy', 'jsonschema'}"
    program = f"import sys, pdwatch.loadgen.sources; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
