"""Slices of the Berkeley Function Calling Leaderboard, version 4."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ..errors import PlanError
from ..task import ExpectedCall, Task
from .bfcl_forms import Undetermined, expected_calls, tool
from .chat import chat_body
from .config import BfclSlice, BfclSource
from .rows import Deck, Rows, open_lines
from .work import CHAT_PATH, Work

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..plan import Plan

_PACKAGE: Final = "bfcl_eval"
_INSTALL: Final = "pip install --no-deps bfcl-eval, or give source.folder, a copy of that package's data folder"
_NO_CALL: Final = ("irrelevance", "live_irrelevance")
_WITHOUT_TRUTH: Final = (*_NO_CALL, "live_relevance")


class Bfcl:
    """All rows of the wanted slices, one after another."""

    def __init__(self, plan: Plan, config: BfclSource) -> None:
        self._plan = plan
        self._config = config
        folder = _folder(config)
        self._slices = [(name, open_lines(_file(folder, name), _acceptance(name))) for name in config.slices]
        self._truths = {
            name: _truths(_file(folder / "possible_answer", name))
            for name in config.slices
            if name not in _WITHOUT_TRUTH
        }
        self._deck = Deck(sum(len(rows) for _, rows in self._slices), config.order, plan.seed)

    def work(self, number: int, arm: str) -> Work:
        seed = self._plan.seed
        name, rows, index = self._row(self._deck.index(number))
        row = rows.value(index)
        messages, tools = _request(row, name)
        provenance: dict[str, str | int] = {
            "source": "bfcl",
            "family": f"bfcl_{name}",
            "file": rows.path.name,
            "row": rows.number(index),
            "seed": seed,
        }
        calls = self._expected(name, row["id"], messages, tools)
        if not calls:
            provenance["expects"] = "no_call" if name in _NO_CALL else "call"
        task = Task(
            task_id=f"{seed}-{number}-{arm}",
            family=f"bfcl_{name}",
            seed=seed,
            number=number,
            nonce="",
            messages=tuple(messages),
            tools=tuple(tools),
            expected_calls=calls,
            expected_text=None,
            planted=(),
        )
        is_streamed = Random(f"{seed}/mix/{number}").random() < self._config.streamed_share
        body = chat_body(self._plan, messages, tools, self._config.max_tokens, is_streamed=is_streamed)
        return Work(body, task, is_streamed, True, CHAT_PATH, provenance)

    def follow_up(self, work: Work, answer: Assembled) -> Work | None:
        del work, answer
        return None

    def _row(self, index: int) -> tuple[BfclSlice, Rows, int]:
        for name, rows in self._slices:
            if index < len(rows):
                return name, rows, index
            index -= len(rows)
        raise IndexError(index)

    def _expected(
        self, name: BfclSlice, row_id: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> tuple[ExpectedCall, ...]:
        truth = self._truths.get(name, {}).get(row_id)
        if truth is None:
            return ()
        try:
            return expected_calls(truth, tools, "\n".join(str(message.get("content")) for message in messages))
        except Undetermined:
            return ()


def _folder(config: BfclSource) -> Path:
    if config.folder is not None:
        return config.folder
    # found without importing it: the package pulls in every vendor's client.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise PlanError(f"source bfcl needs the package bfcl-eval, which is not installed: {_INSTALL}")
    return Path(next(iter(found.submodule_search_locations))) / "data"


def _file(folder: Path, name: str) -> Path:
    path = folder / f"BFCL_v4_{name}.json"
    if not path.is_file():
        raise PlanError(f"BFCL slice {name!r} is not at {path}: {_INSTALL}")
    return path


def _truths(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """The right answers of a slice by the id of their question."""
    truths: dict[str, list[Mapping[str, Any]]] = {}

    def keep(value: Any) -> bool:
        truth = value.get("ground_truth") if isinstance(value, Mapping) else None
        if not isinstance(truth, list) or not all(_is_call(call) for call in truth):
            raise ValueError(f"is {value!r:.80}; it needs an id and a ground_truth of calls")
        truths[str(value.get("id"))] = truth
        return True

    open_lines(path, keep)
    return truths


def _is_call(call: Any) -> bool:
    return isinstance(call, Mapping) and all(isinstance(arguments, Mapping) for arguments in call.values())


def _acceptance(name: str) -> Any:
    def accept(value: Any) -> bool:
        _request(value, name)
        return True

    return accept


def _request(value: Any, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row's messages and tools. Raises ValueError for a row that is not a single-turn question."""
    question = value.get("question") if isinstance(value, Mapping) else None
    functions = value.get("function") if isinstance(value, Mapping) else None
    is_row = isinstance(value, Mapping) and isinstance(value.get("id"), str)
    if not is_row or not isinstance(question, list) or len(question) != 1 or not isinstance(functions, list):
        raise ValueError(f"is {value!r:.80}; it needs an id, one question and a list of functions")
    messages = question[0]
    if not isinstance(messages, list) or not messages or not all(isinstance(item, Mapping) for item in messages):
        raise ValueError(f"question is {question!r:.80}; it needs a list of messages")
    return messages, [tool(function, name) for function in functions]
