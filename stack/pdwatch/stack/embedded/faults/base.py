"""The hooks at which a fault can act. The base does nothing, so the engine calls it without asking."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor


class Fault:
    """No fault. A subclass in a module of this folder overrides the hook at the place its bug would live.

    Every hook takes the decode batch and does nothing at a batch of 1. `random` is seeded: the same calls in the
    same order give the same faults.
    """

    name: ClassVar[str] = "none"
    where: ClassVar[str] = ""
    signature: ClassVar[str] = ""
    description: ClassVar[str] = ""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.random = random.Random(f"{self.name}:{seed}")

    def index_table(self, table: Tensor, rids: Sequence[str]) -> Tensor:
        """The page table [batch, pages] through which the indexer reads its keys; `rids` names the rows."""
        return table

    def page_appended(self, batch: int, update: Callable[[], None]) -> None:
        """A running request got a page; `update` enters it into the device's page table."""
        update()

    def frees_before_transfer_ends(self, rid: str, batch: int) -> bool:
        """True: an aborted reservation gives its pages back although bytes are still on their way to them."""
        return False

    def page_arrived(self, page: int, aborted: bool, write: Callable[[], None]) -> None:
        """Bytes of a transfer arrived for `page`, of a reservation that is `aborted` or not; `write` stores them."""
        write()

    def step_starts(self, tables: Sequence[Sequence[int]]) -> None:
        """A decode step is about to run over these pages, one list a row."""

    def misses_abort(self, requests: int) -> bool:
        """True: the prefill worker, with so many requests at hand, goes on with a queued one that was aborted."""
        return False

    def first_token(self, room: int, token: int, batch: int) -> int:
        """The first token with which a room starts to decode."""
        return token

    def logits(self, logits: Tensor) -> Tensor:
        """The step's logits [batch, vocabulary] before sampling."""
        return logits

    def sampled(self, tokens: list[int]) -> list[int]:
        """The step's sampled tokens, one a row."""
        return tokens

    def step_ended(self, batch: int, seconds: float) -> None:
        """Called inside the decode step's timing, after `seconds` of work."""

    def cut_stream(self, request_index: int, batch: int) -> bool:
        """True: the server ends this request's stream without finish_reason, usage and [DONE]."""
        return False

    def stream_fragment(self, fragment: str, batch: int) -> str:
        """An arguments fragment as the streaming path sends it."""
        return fragment
