"""The process beside the loop: it makes requests ready, and understands and records what came of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from .assembly import Assembled
from .errors import LoadgenError, PlanError
from .journal import JOURNAL_NAME, JournalWriter
from .live import Live
from .messages import (
    Asking,
    Batch,
    Beginning,
    Closing,
    Ended,
    LiveFigures,
    Opened,
    Opening,
    Order,
    PhaseFigures,
    Recorded,
)
from .metrics import measure
from .pipe import Child, Handle, start_child
from .plan import Plan
from .prepared import Kept, Prepared, Preparer
from .recording import understand
from .row import ROWS_NAME, RequestRow, RowWriter, row_of
from .sources import Source, open_source
from .steady import phase_window
from .summary import margins, summarise
from .transcript import Outcome

_BATCH: Final = 16


def start_clerk(plan: Plan, make_clerk: type[Clerk] | None = None) -> Child:
    """Fork the clerk, of another class if wanted. To be called before gevent has a loop. Raises PlanError."""
    # opened here, so that a source or token that cannot be used ends the run before it has begun.
    source, bearer_token = open_source(plan), plan.bearer_token()
    return start_child(lambda: _employed((make_clerk or Clerk)(plan, source, bearer_token)))


@contextlib.contextmanager
def _employed(clerk: Clerk) -> Iterator[Handle]:
    try:
        yield clerk.handle
    finally:
        clerk.close()


class Clerk:
    """Answers the driver's messages.

    It keeps the rows of the phase under way, for the figures at its end are exact: 1 KiB a request and 16 bytes a
    token, 8 each for the gap before it and the one before its chunk. That is 50 MB for 10,000 requests of 256 tokens;
    summing up takes as much again for a moment.
    """

    def __init__(self, plan: Plan, source: Source, bearer_token: str | None) -> None:
        self._plan = plan
        self._source = source
        self._bearer_token = bearer_token
        self._files = contextlib.ExitStack()
        self._journal: JournalWriter | None = None
        self._rows_file: RowWriter | None = None
        self._preparer: Preparer | None = None
        self._kept: dict[str, Kept] = {}
        self._rows: list[RequestRow] = []
        self._live = Live(plan.slo)
        self._exposition: Any = None
        self._handlers: dict[type, Callable[[Any], Iterable[Any]]] = {
            Opening: self._open,
            Beginning: self._begin,
            Order: self._make,
            Ended: self._record,
            Asking: self._tell,
            Closing: self._conclude,
        }

    def handle(self, message: Any) -> Iterable[Any]:
        """Do what a message asks for; the answers."""
        return self._handlers[type(message)](message)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _open(self, message: Opening) -> Iterable[Opened]:
        directory = Path(message.directory)
        try:
            self._journal = self._files.enter_context(JournalWriter(directory / JOURNAL_NAME))
            self._rows_file = self._files.enter_context(RowWriter(directory / ROWS_NAME))
        except OSError as error:
            raise PlanError(f"{directory} cannot be written to ({error.strerror}); give another folder") from None
        if self._plan.metrics_port is not None:
            from .exposition import Exposition, serve_exposition

            self._exposition = Exposition(self._plan.slo)
            self._files.callback(serve_exposition(self._exposition, self._plan.metrics_port))
        return (Opened(),)

    def _begin(self, message: Beginning) -> Iterable[Any]:
        self._preparer = Preparer(self._plan, self._source, message.phase, message.pair, self._bearer_token)
        if self._exposition is not None:
            self._exposition.begin(message.phase)
        self._kept.clear()
        self._rows.clear()
        self._live = Live(self._plan.slo)
        return ()

    def _make(self, order: Order) -> Iterator[Batch]:
        preparer = self._preparer
        assert preparer is not None
        made: list[Prepared] = []
        for sequence in order.sequences:
            prepared, self._kept[prepared.request_id] = preparer.first(order.label, sequence)
            made.append(prepared)
            if len(made) == _BATCH or sequence == order.sequences[-1]:
                yield Batch(preparer.phase.index, order.label, tuple(made))
                made.clear()

    def _record(self, ended: Ended) -> Iterator[Recorded]:
        preparer, journal, rows_file = self._preparer, self._journal, self._rows_file
        assert preparer is not None and journal is not None and rows_file is not None
        kept = self._kept.pop(ended.request_id)
        transcript, assembled = understand(
            ended.exchange, ended.request_id, ended.label, ended.user, kept, preparer, self._plan.dialect
        )
        row = row_of(transcript, assembled, measure(transcript, assembled))
        try:
            journal.append(transcript)
            rows_file.append(row)
        except OSError as error:
            raise LoadgenError(f"the journal cannot be written ({error.strerror}); make room on its disk") from error
        self._rows.append(row)
        self._live.add(row)
        if self._exposition is not None:
            self._exposition.observe(row)
        following = self._following(preparer, ended.request_id, kept, transcript.outcome, assembled)
        yield Recorded(ended.request_id, preparer.phase.index, ended.label, transcript.outcome, following)

    def _following(
        self, preparer: Preparer, request_id: str, kept: Kept, outcome: Outcome, assembled: Assembled
    ) -> Prepared | None:
        session = kept.work.session
        if outcome is not Outcome.COMPLETE or session is None or session.is_last:
            return None
        work = self._source.follow_up(kept.work, assembled)
        if work is None:
            return None
        prepared, following = preparer.next(request_id, kept, work)
        self._kept[prepared.request_id] = following
        return prepared

    def _tell(self, asking: Asking) -> Iterator[LiveFigures]:
        if self._exposition is not None:
            self._exposition.set_gauges(
                in_flight=asking.in_flight, users=asking.users, loop_lag_seconds=asking.loop_lag_seconds
            )
        yield LiveFigures(self._live.figures(asking.now_seconds))

    def _conclude(self, closing: Closing) -> Iterator[PhaseFigures]:
        assert self._preparer is not None
        phase, slo = self._preparer.phase, self._plan.slo
        window = phase_window(phase.load, closing.users, self._rows, closing.starts_seconds, closing.ends_seconds)
        summary = summarise(self._rows, window, slo, unsent=closing.unsent)
        taken = None
        if self._plan.search is not None and slo is not None:
            taken = tuple(margins(self._rows, window, slo, unsent=closing.unsent))
        yield PhaseFigures(phase.index, asdict(window), summary.to_record(), taken)
