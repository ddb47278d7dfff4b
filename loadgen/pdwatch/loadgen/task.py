"""One thing to ask of the deployment, and its one right answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A tool call that the answer must hold; `arguments` is in the schema's field order."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A chat request and what is known of its right answer.

    Either `expected_calls` is not empty and the answer is exactly these calls in this order, or `expected_text` is
    the whole answer and no tool may be called, or neither: then the request does not determine its answer. `nonce`
    stands in no other request of the run, and where the answer is determined also in the first call's arguments or in
    the text; "" where none was planted. `planted` are the values too rare to come up by chance (the nonce first, then
    codes, 64-bit integers and words outside ASCII), each as it reads in the answer's JSON.
    """

    task_id: str
    family: str
    seed: int
    number: int
    nonce: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    expected_calls: tuple[ExpectedCall, ...]
    expected_text: str | None
    planted: tuple[str, ...]

    def to_record(self) -> dict[str, Any]:
        """As JSON values, without `messages` and `tools`, which stand in the sent body."""
        return {
            "task_id": self.task_id,
            "family": self.family,
            "seed": self.seed,
            "number": self.number,
            "nonce": self.nonce,
            "expected_calls": [{"name": call.name, "arguments": call.arguments} for call in self.expected_calls],
            "expected_text": self.expected_text,
            "planted": self.planted,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], sent_body: str) -> Task:
        """The task whose request was `sent_body`; the inverse of `to_record`."""
        body = json.loads(sent_body)
        return cls(
            task_id=record["task_id"],
            family=record["family"],
            seed=record["seed"],
            number=record["number"],
            nonce=record["nonce"],
            messages=tuple(body["messages"]),
            tools=tuple(body.get("tools", ())),
            expected_calls=tuple(ExpectedCall(call["name"], call["arguments"]) for call in record["expected_calls"]),
            expected_text=record["expected_text"],
            planted=tuple(record["planted"]),
        )
