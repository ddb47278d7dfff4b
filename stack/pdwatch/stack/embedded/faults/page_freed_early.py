"""After an abort the pages of a running KV transfer are given back before it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pdwatch.stack.embedded.faults.base import Fault


class PageFreedEarly(Fault):
    """The free list is LIFO, so the next reservation gets the pages and late bytes land in another request's KV.

    A loopback transfer is over in milliseconds, an RDMA write behind a busy link is not: bytes that arrive for an
    aborted request are late here, until the page serves a running request. The prefill worker does not hear of the
    abort while other requests keep it busy, and sends what it has computed.
    """

    name = "page_freed_early"
    where = "decode worker, abort of a request whose KV transfer is running"
    signature = "leak"
    description = (
        "pages are freed before the transfer into them ends; late bytes overwrite another request's KV. At a decode "
        "batch above 1; the prefill worker misses the abort whenever it holds more than one request"
    )

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._late: list[tuple[int, Callable[[], None]]] = []

    def frees_before_transfer_ends(self, rid: str, batch: int) -> bool:
        return batch > 1

    def misses_abort(self, requests: int) -> bool:
        return requests > 1

    def page_arrived(self, page: int, aborted: bool, write: Callable[[], None]) -> None:
        if aborted:
            self._late.append((page, write))
        else:
            write()

    def step_starts(self, tables: Sequence[Sequence[int]]) -> None:
        if len(tables) < 2 or not self._late:
            return
        serving = {page for table in tables for page in table}
        for page, write in self._late:
            if page in serving:
                write()
        self._late = [(page, write) for page, write in self._late if page not in serving]
