"""How long a user rests after a failure, so that a server that fails at once is not asked ever faster."""

from __future__ import annotations

from typing import Final

from .exchange import End, Exchange

LEAST_SECONDS: Final = 0.05
MOST_SECONDS: Final = 1.0
MOST_RETRY_AFTER_SECONDS: Final = 5.0


class Rest:
    """One user's rests: two attempts begin at least 50 ms apart after a failure, twice as much after each further one.

    At most 1 s, or what the server's Retry-After says, up to 5 s from the failure. A success ends it.
    """

    __slots__ = ("_apart_seconds",)

    def __init__(self) -> None:
        self._apart_seconds = 0.0

    def after(self, exchange: Exchange, status: int | None, retry_after: str | None) -> float:
        """Seconds to rest after an exchange; `status` is that of a response that came whole, None without one."""
        if exchange.end is End.CANCELLED:
            return 0.0
        if status is not None and status < 300:
            self._apart_seconds = 0.0
            return 0.0
        self._apart_seconds = min(MOST_SECONDS, max(LEAST_SECONDS, 2 * self._apart_seconds))
        wanted_seconds = self._apart_seconds - (exchange.ended_seconds - exchange.sent_seconds)
        if retry_after is not None and retry_after.isdecimal():
            wanted_seconds = max(wanted_seconds, min(float(retry_after), MOST_RETRY_AFTER_SECONDS))
        return max(0.0, wanted_seconds)
