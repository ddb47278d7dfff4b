"""Decode side of a KV transfer: pages reserved for a room, filled by bytes, installed or given back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pdwatch.stack.embedded.errors import TransferError
from pdwatch.stack.embedded.faults import Fault
from pdwatch.stack.embedded.pool import KvPool
from pdwatch.stack.embedded.scheduler import Scheduler
from pdwatch.stack.embedded.sequence import SequenceState


@dataclass(slots=True, eq=False)
class Reservation:
    """Pages whose bytes are on their way. `pages` outlives an abort: late bytes still aim at them."""

    sequence: SequenceState
    pages: list[int]
    received: set[int] = field(default_factory=set)
    aborted: bool = False


class Reservations:
    """Queued requests (no pages yet) and open ones (receivable), in order of arrival.

    A transfer that has been offered pages may write to them until the sender has stopped, so an abort keeps the pages
    until `transfer_ended` (SGLang: deferred KV release).
    """

    def __init__(self, pool: KvPool, scheduler: Scheduler, fault: Fault, max_running_requests: int) -> None:
        self._pool = pool
        self._scheduler = scheduler
        self._fault = fault
        self._max_running_requests = max_running_requests
        self.queued: deque[SequenceState] = deque()
        self.open: dict[str, Reservation] = {}

    def admit(self) -> None:
        """Reserves pages for queued requests while rows and pages last."""
        scheduler = self._scheduler
        while self.queued and not scheduler.retracted:
            committed = len(scheduler.running) + len(self.open)
            if committed >= self._max_running_requests:
                return
            pages = scheduler.take_pages(scheduler.pages_for(self.queued[0].prompt_length), spare=committed)
            if pages is None:
                return
            sequence = self.queued.popleft()
            sequence.pages = pages
            self.open[sequence.rid] = Reservation(sequence, pages)

    def write_page(self, rid: str, page_index: int, data: bytes) -> None:
        """Stores the bytes of one page. Raises TransferError."""
        reservation = self._open(rid)
        if not 0 <= page_index < len(reservation.pages):
            raise TransferError(
                f"page {page_index} of request {rid} does not exist: {len(reservation.pages)} pages are reserved"
            )
        page = reservation.pages[page_index]
        self._fault.page_arrived(page, reservation.aborted, lambda: self._pool.write_page(page, data))
        reservation.received.add(page_index)

    def complete(self, rid: str, prompt_tokens: int) -> SequenceState:
        """Closes a transfer whose pages have all arrived. Raises TransferError."""
        reservation = self._open(rid)
        sequence = reservation.sequence
        if reservation.aborted:
            raise TransferError(f"request {rid} was aborted: call transfer_ended")
        if prompt_tokens != sequence.prompt_length:
            raise TransferError(
                f"request {rid} has {sequence.prompt_length} prompt tokens here, {prompt_tokens} on the prefill side"
            )
        if missing := len(reservation.pages) - len(reservation.received):
            raise TransferError(f"request {rid} lacks {missing} of {len(reservation.pages)} pages")
        del self.open[rid]
        return sequence

    def abort(self, rid: str, batch: int) -> SequenceState | None:
        """Aborts a queued or open request; pages of an open one stay until `transfer_ended`. None: not here."""
        for sequence in self.queued:
            if sequence.rid == rid:
                self.queued.remove(sequence)
                return sequence
        reservation = self.open.get(rid)
        if reservation is None or reservation.aborted:
            return None
        reservation.aborted = True
        if self._fault.frees_before_transfer_ends(rid, batch):
            self._scheduler.release(reservation.sequence)
        return reservation.sequence

    def transfer_ended(self, rid: str) -> None:
        """No byte will arrive any more for an aborted request: its pages are free. Raises TransferError."""
        reservation = self._open(rid)
        if not reservation.aborted:
            raise TransferError(f"request {rid} is not aborted: install it or abort it first")
        del self.open[rid]
        self._scheduler.release(reservation.sequence)

    def _open(self, rid: str) -> Reservation:
        if rid not in self.open:
            raise TransferError(f"request {rid} has no reserved pages: it is unknown, still queued, or installed")
        return self.open[rid]
