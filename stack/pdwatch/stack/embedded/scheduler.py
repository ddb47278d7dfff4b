"""Continuous batching: who is computed next, who holds which pages, who gives way under pressure."""

from __future__ import annotations

from collections import deque

from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.pool import KvPool
from pdwatch.stack.embedded.prefix import PrefixCache
from pdwatch.stack.embedded.sequence import SequenceState


class Scheduler:
    """Queues and page accounting. First come, first served; nobody overtakes a request that waits for pages.

    waiting    prompts to compute; the first may be partly computed
    running    the decode batch: the request at index r has row r
    retracted  requests whose KV was moved to the host, the oldest first; they come back before anybody new
    """

    def __init__(self, config: EngineConfig, pool: KvPool, cache: PrefixCache) -> None:
        self._config = config
        self._pool = pool
        self._cache = cache
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.retracted: deque[SequenceState] = deque()

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` take."""
        return -(-tokens // self._config.page_size)

    def take_pages(self, count: int, spare: int = 0) -> list[int] | None:
        """`count` pages, evicting unused cached ones; None when fewer than `count + spare` could be freed."""
        shortage = count + spare - self._pool.free_pages
        if shortage > 0:
            if self._cache.evictable < shortage:
                return None
            self._pool.release(self._cache.evict(max(count - self._pool.free_pages, 0)))
        return self._pool.allocate(count)

    def next_prefill(self) -> SequenceState | None:
        """The request whose prompt is computed next, with its pages, or None when none may start now."""
        if not self.waiting:
            return None
        head = self.waiting[0]
        if head.pages:
            return head
        generating = len(self.running) + len(self.retracted)
        if head.generates and (self.retracted or generating >= self._config.max_running_requests):
            return None
        # the last prompt token is always computed: its logits are wanted.
        limit = head.prompt_length - 1 if head.scored_from is None else head.scored_from
        shared = self._cache.acquire(head.tokens, limit)
        own = self.take_pages(self.pages_for(head.prompt_length) - len(shared), spare=len(self.running))
        if own is None:
            self._cache.release(shared)
            return None
        head.shared = shared
        head.pages = [page.page for page in shared] + own
        head.computed = head.cached_tokens = len(shared) * self._config.page_size
        self._cache.count_query(head.prompt_length, head.cached_tokens)
        return head

    def share(self, sequence: SequenceState) -> None:
        """Offers the pages of a computed prompt to the prefix cache."""
        added = self._cache.insert(sequence.request.prompt_ids, sequence.pages, sequence.shared)
        sequence.shared += added

    def needs_page(self, sequence: SequenceState) -> bool:
        """True when the newest token of a running request stands on a page it does not have yet."""
        return self.pages_for(len(sequence.tokens)) > len(sequence.pages)

    def victim(self) -> int:
        """The row of the running request that gives way: the one that started last."""
        return max(range(len(self.running)), key=lambda row: self.running[row].started)

    def save(self, sequence: SequenceState) -> None:
        """Moves the KV of a request that has left the batch to the host and queues it to come back."""
        sequence.saved = self._pool.save(sequence.pages)
        sequence.retractions += 1
        self.release(sequence)
        # victims come the youngest first, so the one that waits longest stands at the front.
        self.retracted.appendleft(sequence)

    def next_resumed(self) -> SequenceState | None:
        """A retracted request with its KV back in the pool, if it fits beside the running ones."""
        if not self.retracted:
            return None
        sequence = self.retracted[0]
        assert sequence.saved is not None
        # with the page of its newest token, so that it is not retracted again at once.
        count = max(sequence.saved.pages, self.pages_for(len(sequence.tokens)))
        pages = self.take_pages(count, spare=len(self.running))
        if pages is None:
            return None
        self.retracted.popleft()
        self._pool.restore(pages[: sequence.saved.pages], sequence.saved)
        sequence.pages, sequence.saved = pages, None
        return sequence

    def withdraw(self, rid: str) -> SequenceState | None:
        """Takes a waiting or retracted request out and gives its memory back; None when it is neither."""
        for queue in (self.waiting, self.retracted):
            for sequence in queue:
                if sequence.rid == rid:
                    queue.remove(sequence)
                    self.release(sequence)
                    return sequence
        return None

    def release(self, sequence: SequenceState) -> None:
        """Gives the request's own pages back and ends its use of the shared ones."""
        shared = {page.page for page in sequence.shared}
        self._cache.release(sequence.shared)
        self._pool.release([page for page in sequence.pages if page not in shared])
        sequence.shared, sequence.pages = [], []
