"""Prefix cache: a tree of full pages, shared by reference count, evicted least recently used first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class CachedPage:
    """One full page of tokens behind a fixed prefix. `users` counts the requests that read it now."""

    tokens: tuple[int, ...]
    page: int
    parent: CachedPage | None
    users: int = 0
    last_used: int = 0
    children: dict[tuple[int, ...], CachedPage] = field(default_factory=dict)


class PrefixCache:
    """Maps prompts to pages whose KV is already computed.

    The key of a page is its tokens and its parent, so two prompts share a page only if they agree from the start. The
    cache owns the pages in it; a request that uses one holds a user count, never the page.
    """

    def __init__(self, page_size: int, enabled: bool) -> None:
        self.page_size = page_size
        self.enabled = enabled
        self.hit_tokens = 0
        self.query_tokens = 0
        self._roots: dict[tuple[int, ...], CachedPage] = {}
        self._pages: set[CachedPage] = set()
        self._clock = 0

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def evictable(self) -> int:
        """Pages that nobody reads. A page in use keeps its parents in use, so all of these can be given up."""
        return sum(not page.users for page in self._pages)

    def acquire(self, tokens: Sequence[int], limit: int) -> list[CachedPage]:
        """The longest cached prefix of at most `limit` tokens; its pages stay until `release`."""
        found: list[CachedPage] = []
        children = self._roots
        if self.enabled:
            for start in range(0, limit - self.page_size + 1, self.page_size):
                page = children.get(tuple(tokens[start : start + self.page_size]))
                if page is None:
                    break
                found.append(page)
                children = page.children
        self._use(found)
        return found

    def count_query(self, tokens: int, hit_tokens: int) -> None:
        """Counts one admitted prompt of `tokens`, of which `hit_tokens` came from the cache."""
        self.query_tokens += tokens
        self.hit_tokens += hit_tokens

    def insert(self, tokens: Sequence[int], pages: Sequence[int], held: Sequence[CachedPage]) -> list[CachedPage]:
        """Takes over the full pages of `tokens` that are not cached yet.

        pages  the request's pages in order; those of `held` come first
        held   what `acquire` gave the request

        Returns the pages taken over, in use by the request. A page that another request cached meanwhile stays the
        caller's; insertion stops there, so that what a request holds is always one path from the root.
        """
        if not self.enabled:
            return []
        parent = held[-1] if held else None
        added: list[CachedPage] = []
        for index in range(len(held), len(tokens) // self.page_size):
            children = parent.children if parent else self._roots
            key = tuple(tokens[index * self.page_size : (index + 1) * self.page_size])
            if key in children:
                break
            parent = children[key] = CachedPage(key, pages[index], parent)
            self._pages.add(parent)
            added.append(parent)
        self._use(added)
        return added

    def release(self, pages: Sequence[CachedPage]) -> None:
        """A request stops reading these pages."""
        for page in pages:
            assert page.users > 0, f"page {page.page} released more often than acquired"
            page.users -= 1

    def evict(self, count: int) -> list[int]:
        """Gives up to `count` unused pages back, the least recently used first, children before parents."""
        evicted: list[int] = []
        while len(evicted) < count:
            leaves = [page for page in self._pages if not page.users and not page.children]
            if not leaves:
                break
            oldest = min(leaves, key=lambda page: (page.last_used, page.page))
            siblings = oldest.parent.children if oldest.parent else self._roots
            del siblings[oldest.tokens]
            self._pages.remove(oldest)
            evicted.append(oldest.page)
        return evicted

    def _use(self, pages: Sequence[CachedPage]) -> None:
        self._clock += 1
        for page in pages:
            page.users += 1
            page.last_used = self._clock
