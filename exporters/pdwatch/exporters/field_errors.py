"""How often each field was missing, and why."""

from __future__ import annotations

import threading


class FieldErrors:
    """Counts of `(field, reason)`. One collection counts a field once for each reason, on however many devices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._pending: set[tuple[str, str]] = set()

    def note(self, field: str, reason: str) -> None:
        """This collection lacks `field`, for `reason`."""
        with self._lock:
            self._pending.add((field, reason))

    def settle(self) -> None:
        """A collection is over: count what it noted."""
        with self._lock:
            for key in self._pending:
                self._counts[key] = self._counts.get(key, 0) + 1
            self._pending.clear()

    def counts(self) -> dict[tuple[str, str], int]:
        """Collections that lacked a field, by field and reason, sorted."""
        with self._lock:
            return dict(sorted(self._counts.items()))
