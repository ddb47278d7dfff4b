"""Faults: each changes what it says at a batch, and nothing at a batch of 1."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from pdwatch.stack.embedded import checkpoint, faults
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.curriculum import sample
from pdwatch.stack.embedded.engine import Engine
from pdwatch.stack.embedded.faults import Fault
from pdwatch.stack.embedded.request import PrefillDone, Request, SamplingParameters

WEIGHTS = Path(checkpoint.__file__).parent / "weights" / "tiny_toolcaller.safetensors"
NAMES = [info.name for info in faults.catalogue()]
# those that change tokens inside the engine, without an abort.
WRONG_TOKENS = [
    "first_token_other_room", "index_k_aliased", "nan_row_sanitised", "sampler_rows_swapped", "stale_page_table",
]  # fmt: skip


def tasks(count: int) -> list[tuple[list[int], list[int]]]:
    """Tasks with prompts longer than top-k + window."""
    source = random.Random(31)
    found: list[tuple[list[int], list[int]]] = []
    while len(found) < count:
        prompt, answer = sample(source, 1024)
        if 200 <= len(prompt) <= 500:
            found.append((prompt, answer))
    return found


TASKS = tasks(30)
SAMPLING = SamplingParameters(max_new_tokens=300)


class Prefilled(NamedTuple):
    """What a prefill worker sent for a task."""

    first_token: int
    pages: list[bytes]


@pytest.fixture(scope="module")
def sent() -> list[Prefilled]:
    """All tasks, prefilled once."""
    engine = Engine(EngineConfig(role="prefill", num_pages=600), WEIGHTS)
    prefilled = []
    for number, (prompt, _) in enumerate(TASKS):
        engine.submit(Request(str(number), prompt, SAMPLING, room=number))
        (done,) = engine.step()
        assert isinstance(done, PrefillDone)
        prefilled.append(Prefilled(done.first_token, [done.kv.read(page) for page in range(done.kv.pages)]))
    return prefilled


def install(engine: Engine, number: int, prefilled: Prefilled) -> None:
    """The transfer of a reserved task."""
    for page, data in enumerate(prefilled.pages):
        engine.write_page(str(number), page, data)
    engine.install(str(number), prefilled.first_token, None, len(TASKS[number][0]), 0)


def wrong_answers(sent: list[Prefilled], fault: str | None, batch: int, count: int) -> set[int]:
    """Numbers of the tasks that a decode engine with this fault answers wrongly."""
    engine = Engine(EngineConfig(role="decode", num_pages=600, max_running_requests=batch, fault=fault), WEIGHTS)
    for number in range(count):
        engine.reserve(Request(str(number), TASKS[number][0], SAMPLING, room=number))
    answers: dict[int, list[int]] = {number: [] for number in range(count)}
    waiting = list(range(count))
    while engine.has_work or waiting:
        while waiting and engine.receivable(str(waiting[0])):
            number = waiting.pop(0)
            install(engine, number, sent[number])
        for output in engine.step():
            answers[int(output.rid)] += getattr(output, "new_token_ids", [])
    return {number for number in range(count) if answers[number] != TASKS[number][1]}


def test_the_catalogue_says_what_each_fault_is() -> None:
    assert {info.name: info.signature for info in faults.catalogue()} == {
        "first_token_other_room": "first_token",
        "index_k_aliased": "wrong_value",
        "nan_row_sanitised": "garbled",
        "page_freed_early": "leak",
        "sampler_rows_swapped": "garbled",
        "slow_step": "slow_decode",
        "stale_page_table": "wrong_value",
        "stream_arguments_lost": "lost_bytes",
        "stream_truncated": "truncated",
    }
    assert all(info.where and info.description for info in faults.catalogue())


def test_each_fault_is_one_module_of_its_name() -> None:
    assert all(type(faults.load(name)).__module__ == f"{faults.__name__}.{name}" for name in NAMES)


@pytest.mark.parametrize("name", WRONG_TOKENS)
def test_a_batch_of_one_stays_clean(sent: list[Prefilled], name: str) -> None:
    assert wrong_answers(sent, name, batch=1, count=4) == set()


def test_a_batch_without_a_fault_is_right(sent: list[Prefilled]) -> None:
    assert wrong_answers(sent, None, batch=8, count=len(TASKS)) == set()


@pytest.mark.parametrize("name", WRONG_TOKENS)
def test_a_fault_shows_in_a_batch(sent: list[Prefilled], name: str) -> None:
    # more than 5 % of 30 requests.
    assert len(wrong_answers(sent, name, batch=8, count=len(TASKS))) >= 2


def test_a_fault_repeats_with_its_seed(sent: list[Prefilled]) -> None:
    first = wrong_answers(sent, "sampler_rows_swapped", batch=4, count=8)

    assert first == wrong_answers(sent, "sampler_rows_swapped", batch=4, count=8)


@pytest.mark.parametrize("fault", [None, "page_freed_early"])
def test_late_bytes_after_an_abort(sent: list[Prefilled], fault: str | None) -> None:
    engine = Engine(EngineConfig(role="decode", num_pages=200, fault=fault), WEIGHTS)
    for number in range(4):
        engine.reserve(Request(str(number), TASKS[number][0], SAMPLING, room=number))
        if number == 2:
            engine.abort("2")
        else:
            install(engine, number, sent[number])
    # request 2's sender knows nothing of the abort.
    for page, data in enumerate(sent[2].pages):
        engine.write_page("2", page, data)
    engine.transfer_ended("2")
    answers: dict[str, list[int]] = {"2": []}
    while engine.has_work:
        for output in engine.step():
            answers.setdefault(output.rid, []).extend(getattr(output, "new_token_ids", []))

    assert answers["0"] == TASKS[0][1]
    assert answers["1"] == TASKS[1][1]
    # the pages of request 2 were handed to request 3 next.
    assert (answers["3"] == TASKS[3][1]) == (fault is None)


def certain(name: str) -> Fault:
    """The fault with every rate set to 1: it acts whenever it may."""
    fault = faults.load(name)
    for attribute in [attribute for attribute in dir(fault) if attribute.startswith("rate")]:
        setattr(fault, attribute, 1.0)
    return fault


@pytest.mark.parametrize("name", NAMES)
def test_no_hook_acts_at_a_batch_of_one(name: str) -> None:
    fault = certain(name)
    logits, table, tokens = torch.randn(1, 272), torch.arange(4).reshape(1, 4), [65]
    for number in range(20):
        done: list[str] = []
        fault.page_appended(1, partial(done.append, "entered"))
        assert done == ["entered"]
        fault.page_arrived(3, False, partial(done.append, "stored"))
        assert done == ["entered", "stored"]
        fault.step_starts([[1, 2, 3]])
        assert torch.equal(fault.index_table(table, ["r"]), table)
        assert torch.equal(fault.logits(logits), logits)
        assert fault.sampled(list(tokens)) == tokens
        # another token each time: a buffer of an earlier room must not come out.
        assert fault.first_token(number, number, 1) == number
        assert not fault.frees_before_transfer_ends("r", 1)
        assert not fault.misses_abort(1)
        assert not fault.cut_stream(number, 1)
        assert fault.stream_fragment("ab", 1) == "ab"


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_one_row_takes_its_own_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_waits() -> float:
        pytest.fail("the clock was read: somebody waits")

    fault = certain(name)
    monkeypatch.setattr("time.perf_counter", nobody_waits)
    fault.step_ended(1, 10.0)


def test_a_cut_stream_is_decided_once_for_each_request() -> None:
    fault = faults.load("stream_truncated", seed=3)
    cut = [index for index in range(400) if fault.cut_stream(index, 4)]

    # 20 % of 400; five standard deviations are 5 * sqrt(400 * 0.16) = 40.
    assert 40 <= len(cut) <= 120
    assert cut == [index for index in range(400) if fault.cut_stream(index, 32)]
    assert cut != [index for index in range(400) if faults.load("stream_truncated", seed=4).cut_stream(index, 4)]


def test_fragments_lose_characters() -> None:
    fault = faults.load("stream_arguments_lost")
    sent = "".join(fault.stream_fragment("x", 2) for _ in range(2000))

    # 1 % of 2000; five standard deviations are 22.
    assert 2000 - 42 <= len(sent) < 2000


def test_a_slow_step_waits_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr("pdwatch.stack.embedded.faults.slow_step.time.perf_counter", lambda: float(next(ticks)))
    fault = faults.load("slow_step")

    fault.step_ended(batch=1, seconds=10.0)
    assert next(ticks) == 0
    fault.step_ended(batch=2, seconds=10.0)
    # started at 1, waits until the clock reads 1 + 0.3 * 10 = 4; the next reading is 5.
    assert next(ticks) == 5


def test_no_fault_does_nothing() -> None:
    assert type(faults.load(None)) is Fault
