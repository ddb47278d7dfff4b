"""The Locust users of this process, as many as a phase needs."""

from __future__ import annotations

from typing import Any

from locust.runners import LocalRunner

from .session import Session
from .users import SessionEnvironment, StreamUser


class Crowd:
    """Starts and stops users through a Locust runner."""

    def __init__(self, session: Session) -> None:
        self._runner: Any = LocalRunner(SessionEnvironment(session, StreamUser))

    def resize(self, users: int) -> None:
        """Wait until there are so many users, no more and no fewer. None may be in a phase."""
        self._runner.start(users, spawn_rate=max(users, self._runner.user_count))
        self._runner.spawning_greenlet.join()
        # the runner's plan knows nothing of users added by `grow`.
        surplus = self._runner.user_count - users
        if surplus > 0:
            self._runner.stop_users({StreamUser.__name__: surplus})
        elif surplus < 0:
            self.grow(-surplus)

    def grow(self, users: int) -> None:
        """Add users."""
        self._runner.spawn_users({StreamUser.__name__: users})

    def close(self) -> None:
        """Kill all users; those in a request record what they have."""
        self._runner.quit()
