"""What a source is asked for and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from ..assembly import Assembled
    from ..task import Task

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """Which turn of which conversation; `index` counts from 0 up to `turns` − 1."""

    session_id: str
    index: int
    turns: int

    @property
    def is_last(self) -> bool:
        """Whether no further turn is meant to follow."""
        return self.index + 1 >= self.turns


@dataclass(frozen=True, slots=True)
class Work:
    """One request. `body` is its JSON; `task` says what its answer must be, as far as that is known.

    `promises_usage` tells that the response must hold usage. `provenance` says where the request comes from (`source`,
    `seed`, and a `family` or a `file` and `row`) and, under `expects`, what the answer should be where that is not the
    plain one: `http_error` (longer than the model's context), `call` or `no_call` (whether a tool must be called, when
    the task does not say how).
    """

    body: bytes
    task: Task | None
    is_streamed: bool
    promises_usage: bool
    path: str
    provenance: Mapping[str, str | int]
    session: SessionTurn | None = None


class Source(Protocol):
    """Makes requests. Everything follows from the plan's seed and the request's number, in any process."""

    def work(self, number: int, arm: str) -> Work:
        """Request `number`. Another arm gets the same one, but for the nonce."""
        ...

    def follow_up(self, work: Work, answer: Assembled) -> Work | None:
        """The next request of `work`'s conversation after a complete `answer`; None when it ends here."""
        ...
