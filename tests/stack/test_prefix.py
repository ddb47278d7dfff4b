"""The prefix cache: sharing, reference counts, eviction."""

from __future__ import annotations

from pdwatch.stack.embedded.prefix import PrefixCache

PROMPT = [1, 2, 3, 4, 5, 6, 7]


def filled() -> PrefixCache:
    """Pages 10 (1 2) -> 11 (3 4) -> 12 (5 6), in use by nobody."""
    cache = PrefixCache(page_size=2, enabled=True)
    cache.release(cache.insert(PROMPT, [10, 11, 12, 13], []))
    return cache


def test_only_full_pages_are_taken_over() -> None:
    cache = filled()

    assert [page.page for page in cache.acquire(PROMPT, len(PROMPT))] == [10, 11, 12]
    assert len(cache) == 3


def test_a_prefix_ends_where_prompts_differ() -> None:
    assert [page.page for page in filled().acquire([1, 2, 3, 9, 5, 6], 6)] == [10]


def test_the_same_tokens_behind_another_prefix_are_another_page() -> None:
    assert filled().acquire([3, 4, 5, 6], 4) == []


def test_the_limit_leaves_tokens_to_compute() -> None:
    # 6 tokens are cached; with a limit of 5 only the pages within 4 of them are used.
    assert [page.page for page in filled().acquire(PROMPT, 5)] == [10, 11]


def test_pages_in_use_are_not_evicted() -> None:
    cache = filled()
    held = cache.acquire([1, 2, 3, 4], 4)

    assert cache.evictable == 1
    assert cache.evict(3) == [12]
    cache.release(held)
    assert cache.evict(3) == [11, 10]
    assert len(cache) == 0


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(page_size=1, enabled=True)
    for token in (1, 2, 3):
        cache.release(cache.insert([token], [10 + token], []))
    cache.release(cache.acquire([1], 1))

    assert cache.evict(2) == [12, 13]


def test_a_page_cached_meanwhile_stays_with_its_request() -> None:
    cache = filled()

    # a second request computed the same prompt without a hit: nothing of it is taken over.
    assert cache.insert(PROMPT, [20, 21, 22, 23], []) == []
    assert len(cache) == 3


def test_insertion_continues_what_is_held() -> None:
    cache = filled()
    held = cache.acquire([1, 2, 3, 4, 8, 8], 6)

    added = cache.insert([1, 2, 3, 4, 8, 8], [10, 11, 30], held)

    assert [page.page for page in added] == [30]
    assert [page.page for page in cache.acquire([1, 2, 3, 4, 8, 8], 6)] == [10, 11, 30]


def test_off_means_off() -> None:
    cache = PrefixCache(page_size=2, enabled=False)

    assert cache.insert(PROMPT, [10, 11, 12, 13], []) == []
    assert cache.acquire(PROMPT, 7) == []
