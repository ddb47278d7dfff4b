"""Locust users, each a client with a connection of its own.

Importing this module imports Locust, and with it gevent: only a process that drives load may do so. Neither Locust's
HTTP clients nor its request statistics have a part in it: the first distort the times of streams, the others round to
two digits, and a request's end says nothing yet about its outcome.
"""

from __future__ import annotations

import contextlib
from typing import Any

import locust
from locust.env import Environment
from locust.exception import StopUser

from .client import STOPPED, StreamClient
from .exchange import Exchange
from .pacing import Turn
from .prepared import Prepared
from .rest import Rest
from .session import PhaseRun, Session
from .transcript import Label

# what a user takes as the wait for an answer to begin before it has had one.
FIRST_WAIT_SECONDS = 0.05


class SessionEnvironment(Environment):
    """A Locust environment that knows the session its users belong to."""

    def __init__(self, session: Session, user_class: type[locust.User]) -> None:
        super().__init__(user_classes=[user_class])
        self.session = session


class StreamUser(locust.User):
    """One client: it sends a request whenever the phase's pace gives it a turn, on one connection a target."""

    wait_time = locust.constant(0)

    def __init__(self, environment: SessionEnvironment, *arguments: Any, **keywords: Any) -> None:
        super().__init__(environment, *arguments, **keywords)
        self._session = environment.session
        self._number = self._session.add_user()
        self._clients: dict[str, StreamClient] = {}
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._rest = Rest()

    @locust.task
    def take_part(self) -> None:
        """Take part in one phase after another, until the run stops."""
        session = self._session
        # a loop of our own: between two tasks, locust's costs more than sending a request does.
        while not session.is_stopping:
            session.arrived.wait()
            run = session.current
            try:
                self._take_part(session, run)
            except StopUser:
                raise
            except Exception as error:  # locust would log it and go on, and the run would lack a request
                session.error = session.error or error
                raise StopUser from error
            if not session.is_stopping:
                run.is_over.wait()
        raise StopUser

    def on_stop(self) -> None:
        """Disconnect."""
        for client in self._clients.values():
            client.close()

    def _take_part(self, session: Session, run: PhaseRun) -> None:
        client = self._client(run)
        place = run.place()
        self._rest = Rest()
        # why it cannot connect is told by its first request.
        with contextlib.suppress(OSError), session.connecting:
            client.open()
        run.ready += 1
        run.start.wait()
        while (turn := run.pace.turn(place)) is not None and (taken := session.take(run, turn)) is not None:
            self._converse(session, run, client, turn, taken)
        client.let_go()

    def _converse(
        self, session: Session, run: PhaseRun, client: StreamClient, turn: Turn, first: tuple[Label, Prepared]
    ) -> None:
        """Send a request, and whatever goes on with its conversation."""
        taken: tuple[Label, Prepared] | None = first
        scheduled_seconds = turn.scheduled_seconds
        while taken is not None:
            label, request = taken
            cancel = request.cancel and request.cancel.timed(self._wait_seconds)
            exchange = client.exchange(request.message, cancel, scheduled_seconds)
            if exchange.read_seconds:
                self._wait_seconds = exchange.read_seconds[0] - exchange.sent_seconds
            following = session.ended(run, label, request, self._number, exchange)
            if exchange.detail is STOPPED:
                # what was raised to stop us ended the exchange, and no further.
                raise StopUser
            if run.pace.follows_answers:
                self._rest_after(run, client, request, exchange)
            if following is None:
                return
            next_label = session.go_on(run)
            taken = None if next_label is None else (next_label, following)
            scheduled_seconds = None

    def _rest_after(self, run: PhaseRun, client: StreamClient, request: Prepared, exchange: Exchange) -> None:
        status, retry_after = client.answer(exchange)
        if request.is_refusable and status is not None and 400 <= status < 500:
            return
        rest_seconds = self._rest.after(exchange, status, retry_after)
        if rest_seconds:
            client.hold_up()
            run.is_over.wait(rest_seconds)

    def _client(self, run: PhaseRun) -> StreamClient:
        client = self._clients.get(run.target.url)
        if client is None:
            client = self._clients[run.target.url] = self._session.client(run.target)
        return client
