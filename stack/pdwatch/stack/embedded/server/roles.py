"""What a worker does with a request, by role: generate it here, or hand it over between prefill and decode."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .outputs import OutputStream, RequestFailed

if TYPE_CHECKING:
    from ..engine import Engine
    from ..request import PrefillDone


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where prefill and decode meet for one request: the prefill worker's bootstrap server, and a room."""

    host: str
    port: int
    room: int


@dataclass(frozen=True, slots=True)
class Queues:
    """Requests and tokens that a role holds outside the engine's own queues."""

    bootstrap: int = 0
    inflight: int = 0
    prealloc: int = 0
    transfer: int = 0
    deferred_release: int = 0
    pending_prealloc_tokens: int = 0
    prealloc_tokens: int = 0


class Role(Protocol):
    """One way of serving; the worker's loop calls it, on the loop's thread only."""

    @property
    def queues(self) -> Queues:
        """What waits outside the engine."""

    def holds(self, rid: str) -> bool:
        """True while the request waits or moves outside the engine."""

    def start(self, stream: OutputStream, rendezvous: Rendezvous | None) -> None:
        """Begin a request. Raises EngineError or RequestFailed when it cannot be served."""

    def abort(self, stream: OutputStream) -> None:
        """Stop a request that has not ended, as far as its state allows."""

    def prefilled(self, done: PrefillDone, step_started: float) -> None:
        """The engine computed a prompt whose pages belong to a decode worker."""

    def after_step(self) -> None:
        """The engine may have given pages to requests that wait for them."""

    def finished(self, stream: OutputStream) -> None:
        """The engine delivered the last output of a request."""

    async def share_time(self) -> None:
        """Called between two steps: wait while pages are on the move, within the role's limit."""


class UnifiedRole:
    """Prefill and decode in this engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def queues(self) -> Queues:
        """Nothing waits outside the engine."""
        return Queues()

    def holds(self, rid: str) -> bool:
        """Nothing waits outside the engine."""
        return False

    def start(self, stream: OutputStream, rendezvous: Rendezvous | None) -> None:
        """Submit at once; a rendezvous is ignored, as by a unified SGLang."""
        self._engine.submit(stream.request)
        stream.submitted = time.perf_counter()

    def abort(self, stream: OutputStream) -> None:
        """Take the request out of the engine."""
        self._engine.abort(stream.rid)

    def prefilled(self, done: PrefillDone, step_started: float) -> None:
        """A unified engine hands nothing over."""
        raise AssertionError(f"unified engine handed over {done.rid}")

    def after_step(self) -> None:
        """Nothing waits outside the engine."""

    def finished(self, stream: OutputStream) -> None:
        """Nothing is left outside the engine."""

    async def share_time(self) -> None:
        """No pages move."""


def missing_rendezvous() -> RequestFailed:
    """The refusal of a request that reached one half of a pair without a room."""
    return RequestFailed(
        400, "BadRequestError", "Disaggregated request received without bootstrap room id: send it through the router."
    )
