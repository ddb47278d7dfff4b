"""A request made ready ahead of its time, so that sending it costs the sender nothing."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Phase, Plan, task_number
from .redactor import Redactor
from .request import Cancel, cancel_for, post_request
from .sources.work import Source, Work
from .target import Target
from .transcript import Label


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request's bytes on the wire. `may_go_on`: its answer may bring the next request of its conversation.

    `is_refusable`: it is such that a server should refuse it.
    """

    request_id: str
    sequence: int
    message: bytes
    cancel: Cancel | None
    may_go_on: bool
    is_refusable: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """What its maker keeps of a request until it has ended."""

    number: int
    sequence: int
    work: Work


class Preparer:
    """Makes the requests of one phase; the same arguments give the same one."""

    def __init__(self, plan: Plan, source: Source, phase: Phase, pair: int, bearer_token: str | None) -> None:
        self.phase = phase
        self.target = Target.parse(plan.targets[phase.arm])
        self._plan = plan
        self._source = source
        self._pair = pair
        self._bearer_token = bearer_token
        self.redactor = Redactor(bearer_token)
        self.promises_usage = plan.promises_usage

    def first(self, label: Label, sequence: int) -> tuple[Prepared, Kept]:
        """The `sequence`-th request of a label."""
        number = task_number(self.phase, self._pair, label, sequence)
        kept = Kept(number, sequence, self._source.work(number, self.phase.arm))
        return self._made(f"{self.phase.arm}-{self.phase.index}-{label.value}-{sequence}", kept), kept

    def next(self, request_id: str, kept: Kept, work: Work) -> tuple[Prepared, Kept]:
        """The request that follows another one in its conversation."""
        assert work.session is not None
        kept = Kept(kept.number, kept.sequence, work)
        opening = request_id.partition(".")[0]
        return self._made(f"{opening}.{work.session.index}", kept), kept

    def _made(self, request_id: str, kept: Kept) -> Prepared:
        work = kept.work
        message = post_request(self.target, work.path, request_id, work.body, work.is_streamed, self._bearer_token)
        cancel = cancel_for(self._plan.seed, kept.number, self._plan.cancel_rate)
        may_go_on = work.session is not None and not work.session.is_last
        is_refusable = work.provenance.get("expects") == "http_error"
        return Prepared(request_id, kept.sequence, message, cancel, may_go_on, is_refusable)
