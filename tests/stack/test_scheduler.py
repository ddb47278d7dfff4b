"""Admission, retraction and page accounting, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from pdwatch.stack.embedded.config import EngineConfig, ModelConfig
from pdwatch.stack.embedded.pool import KvPool
from pdwatch.stack.embedded.prefix import PrefixCache
from pdwatch.stack.embedded.request import Request, SamplingParameters
from pdwatch.stack.embedded.scheduler import Scheduler
from pdwatch.stack.embedded.sequence import SequenceState

DIMENSIONS: dict[str, Any] = {
    "vocab": 272, "dim": 8, "layers": 1, "heads": 1, "head_dim": 4, "rope_dim": 2, "rope_base": 10000.0, "ffn": 8,
    "ngram": 2, "norm_eps": 1e-6, "idx_heads": 1, "idx_dim": 2, "idx_rope_dim": 2, "window": 4, "topk": 4,
}  # fmt: skip


def make(pages: int, requests: int = 8, cache: bool = True) -> tuple[Scheduler, KvPool, PrefixCache]:
    """A scheduler over `pages` usable pages of 4 tokens."""
    config = EngineConfig(num_pages=pages + 1, page_size=4, max_running_requests=requests, context_length=64)
    pool = KvPool(ModelConfig(**DIMENSIONS), config.num_pages, config.page_size, "cpu")
    prefix = PrefixCache(config.page_size, cache)
    return Scheduler(config, pool, prefix), pool, prefix


def wait(scheduler: Scheduler, prompt: list[int], new_tokens: int = 8) -> SequenceState:
    """Queues a prompt."""
    state = SequenceState.of(Request(f"r{id(prompt)}", prompt, SamplingParameters(max_new_tokens=new_tokens)))
    scheduler.waiting.append(state)
    return state


def start(scheduler: Scheduler, prompt: list[int]) -> SequenceState:
    """Queues a prompt, gives it pages and puts it into the batch with its first token."""
    state = wait(scheduler, prompt)
    assert scheduler.next_prefill() is state
    scheduler.waiting.popleft()
    state.tokens.append(0)
    state.started = len(scheduler.running)
    scheduler.running.append(state)
    return state


def test_a_prompt_waits_until_its_pages_are_free() -> None:
    scheduler, pool, _ = make(pages=3)
    first = start(scheduler, [1] * 8)
    second = wait(scheduler, [2] * 4)

    # one page is free, but the running request may need it next.
    assert scheduler.next_prefill() is None
    scheduler.running.remove(first)
    scheduler.release(first)
    assert scheduler.next_prefill() is second
    assert pool.free_pages == 2


def test_nobody_overtakes_the_first_in_the_queue() -> None:
    scheduler, _, _ = make(pages=3)
    start(scheduler, [1] * 4)
    wait(scheduler, [2] * 12)
    wait(scheduler, [3] * 4)

    assert scheduler.next_prefill() is None


def test_the_batch_is_bounded_but_scoring_passes() -> None:
    scheduler, _, _ = make(pages=9, requests=1)
    start(scheduler, [1] * 4)
    waiting = wait(scheduler, [2] * 4)

    assert scheduler.next_prefill() is None
    waiting.request.sampling.max_new_tokens = 0
    assert scheduler.next_prefill() is waiting


def test_a_shared_prompt_computes_only_its_rest() -> None:
    scheduler, pool, cache = make(pages=8)
    first = start(scheduler, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    scheduler.share(first)
    second = start(scheduler, [1, 2, 3, 4, 5, 6, 7, 8, 10])

    # 8 of 9 tokens are cached: 2 shared pages, 1 of its own; 3 + 1 pages in use.
    assert second.cached_tokens == second.computed == 8
    assert second.pages[:2] == first.pages[:2]
    assert pool.free_pages == 8 - 4
    assert (cache.query_tokens, cache.hit_tokens) == (18, 8)


def test_a_whole_cached_prompt_still_computes_its_last_page() -> None:
    scheduler, _, _ = make(pages=8)
    scheduler.share(start(scheduler, [1, 2, 3, 4, 5, 6, 7, 8]))

    assert start(scheduler, [1, 2, 3, 4, 5, 6, 7, 8]).cached_tokens == 4


def test_unused_cached_pages_make_room() -> None:
    scheduler, pool, cache = make(pages=3)
    first = start(scheduler, [1] * 8)
    scheduler.share(first)
    scheduler.running.remove(first)
    scheduler.release(first)
    assert (pool.free_pages, len(cache)) == (1, 2)

    assert start(scheduler, [2] * 12).pages
    assert (pool.free_pages, len(cache)) == (0, 0)


def test_the_youngest_gives_way_and_the_oldest_comes_back_first() -> None:
    scheduler, pool, _ = make(pages=6, cache=False)
    states = [start(scheduler, [number] * 4) for number in (1, 2, 3)]
    for expected in (2, 1):
        row = scheduler.victim()
        assert row == expected
        scheduler.save(scheduler.running.pop(row))

    assert pool.free_pages == 5
    assert scheduler.next_resumed() is states[1]
    # 5 tokens: the page that was saved and the one of the newest token.
    assert len(states[1].pages) == 2
    assert states[1].retractions == 1
    scheduler.running.append(states[1])
    assert scheduler.next_resumed() is None


def test_a_retracted_request_keeps_its_kv() -> None:
    scheduler, pool, _ = make(pages=4, cache=False)
    state = start(scheduler, [1] * 8)
    pool.latent[:, state.pages] = torch_pages = pool.latent[:, state.pages] + 7
    scheduler.save(scheduler.running.pop())
    pool.latent.zero_()

    assert scheduler.next_resumed() is state
    assert pool.latent[:, state.pages[:2]].equal(torch_pages)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert make(pages=1)[0].pages_for(tokens) == pages
