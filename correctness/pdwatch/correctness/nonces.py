"""Whose nonce is it? The index that finds one request's nonce in another request's answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pdwatch.loadgen import Transcript

# a shorter nonce could stand in an answer by chance: 36^6 is 2 × 10⁹, against some 10⁷ windows in a run.
MINIMUM_CHARACTERS = 6
SCANNED_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class NonceOwner:
    """A request that carries a nonce; times are monotonic, `ended_seconds` None when the end was not seen."""

    nonce: str
    request_id: str
    arm: str
    sent_seconds: float
    ended_seconds: float | None

    def in_flight_with(self, sent_seconds: float, ended_seconds: float | None) -> bool:
        """True when this request and one that ran in the given span were open at the same time."""
        self_before = self.ended_seconds is not None and self.ended_seconds < sent_seconds
        other_before = ended_seconds is not None and ended_seconds < self.sent_seconds
        return not (self_before or other_before)


class NonceIndex:
    """All nonces of a run; paired arms send the same tasks, so one nonce may have several owners."""

    def __init__(self, owners: Iterable[NonceOwner] = ()) -> None:
        self._owners: defaultdict[str, list[NonceOwner]] = defaultdict(list)
        self._lengths: set[int] = set()
        for owner in owners:
            self.add(owner)

    @classmethod
    def of(cls, transcripts: Iterable[Transcript]) -> Self:
        """The index of all requests of a run whose task has a nonce."""
        return cls(
            NonceOwner(entry.task.nonce, entry.request_id, entry.arm, entry.sent_seconds, entry.ended_seconds)
            for entry in transcripts
            if entry.task is not None and entry.task.nonce
        )

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, owner: NonceOwner) -> None:
        """Raises ValueError for a nonce too short to prove anything."""
        if len(owner.nonce) < MINIMUM_CHARACTERS:
            raise ValueError(
                f"nonce {owner.nonce!r} of {owner.request_id} could appear by chance:"
                f" use at least {MINIMUM_CHARACTERS} characters"
            )
        self._owners[owner.nonce].append(owner)
        self._lengths.add(len(owner.nonce))

    def foreign(self, text: str, own_nonce: str, allowed: str = "") -> tuple[str, ...]:
        """Other requests' nonces in the first million characters of `text`, in order of appearance.

        What stands in `allowed` (the request's own text) or within `own_nonce` is nobody else's secret. Linear in the
        length of the text, whatever the number of nonces.
        """
        scanned = text[:SCANNED_CHARACTERS]
        found: dict[str, int] = {}
        for length in self._lengths:
            for start in range(len(scanned) - length + 1):
                window = scanned[start : start + length]
                if window in self._owners and window not in found:
                    found[window] = start
        strangers = [nonce for nonce in found if nonce not in own_nonce and nonce not in allowed]
        return tuple(sorted(strangers, key=found.__getitem__))

    def owner(self, nonce: str, arm: str, sent_seconds: float, ended_seconds: float | None) -> NonceOwner:
        """The likeliest owner of a leaked nonce: same arm first, then in flight at the same time, then the latest."""
        return max(
            self._owners[nonce],
            key=lambda owner: (
                owner.arm == arm,
                owner.in_flight_with(sent_seconds, ended_seconds),
                owner.sent_seconds,
            ),
        )
