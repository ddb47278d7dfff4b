"""Locust users that send tasks in closed loop.

Importing this module imports Locust, which makes gevent replace the standard library's blocking calls: only a process
that drives load may do so. Locust's request statistics are not fed: they round to two digits, and a request's end says
nothing yet about its outcome. The journal has the figures.
"""

from __future__ import annotations

from typing import Any

import locust
from locust.env import Environment
from locust.exception import StopUser

from .client import StreamClient
from .session import PhaseRun, Session

# what a user takes as the wait for an answer to begin before it has had one.
FIRST_WAIT_SECONDS = 0.05


class SessionEnvironment(Environment):
    """A Locust environment that knows the session its users belong to."""

    def __init__(self, session: Session, user_class: type[locust.User]) -> None:
        super().__init__(user_classes=[user_class])
        self.session = session


class ToolCallUser(locust.User):
    """One client: it sends its next request as soon as the last one has ended, on one connection a target."""

    wait_time = locust.constant(0)

    def __init__(self, environment: SessionEnvironment, *arguments: Any, **keywords: Any) -> None:
        super().__init__(environment, *arguments, **keywords)
        self._session = environment.session
        self._number = self._session.add_user()
        self._clients: dict[str, StreamClient] = {}
        self._wait_seconds = FIRST_WAIT_SECONDS

    @locust.task
    def ask(self) -> None:
        """Send one task and wait for the end of its answer."""
        session = self._session
        session.may_send.wait()
        run = session.current
        if session.is_stopping or run is None:
            raise StopUser
        try:
            self._exchange(session, run)
        except Exception as error:  # locust would log it and go on, and the run would lack a request
            session.error = session.error or error
            raise StopUser from error
        if session.is_stopping:
            raise StopUser

    def on_stop(self) -> None:
        """Disconnect."""
        for client in self._clients.values():
            client.close()

    def _exchange(self, session: Session, run: PhaseRun) -> None:
        client = self._client(run)
        label, request = session.take(run)
        cancel = request.cancel and request.cancel.timed(self._wait_seconds)
        exchange = client.exchange(request.message, cancel)
        if exchange.read_seconds:
            self._wait_seconds = exchange.read_seconds[0] - exchange.sent_seconds
        session.ended(run, label, request, self._number, exchange)

    def _client(self, run: PhaseRun) -> StreamClient:
        client = self._clients.get(run.target.url)
        if client is None:
            plan = self._session.plan
            client = StreamClient(
                run.target,
                connect_timeout_seconds=plan.connect_timeout_seconds,
                request_timeout_seconds=plan.request_timeout_seconds,
                most_response_bytes=plan.most_response_bytes,
            )
            self._clients[run.target.url] = client
        return client
