"""Our messages on the channel between Locust's master and its workers.

The runners here carry messages and tell who is there; users are not theirs to start. The drivers are processes of
their own, so that neither heartbeats nor shipping share a loop with the stamps.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import locust
from locust.env import Environment
from locust.exception import RPCError
from locust.rpc import Message
from locust.runners import STATE_MISSING, STATE_RUNNING, MasterRunner, WorkerRunner

from ..errors import PlanError, TargetUnreachable
from .link import Packet

MESSAGE: Final = "pdwatch"
# what both ends must agree on; a worker of another version is not taken.
PROTOCOL: Final = 1


class Streams(locust.User):
    """Stands for the drivers' users where Locust counts and shows them."""

    abstract = True

    @locust.task
    def stream(self) -> None:
        """Never run: the drivers have users of their own."""


def quiet_locust() -> None:
    """Keep Locust's log to itself: what matters is told by us."""
    logging.getLogger("locust").addHandler(logging.NullHandler())
    logging.getLogger("locust").propagate = False


class LeadRunner(MasterRunner):
    """Locust's master. `on_packet` gets each packet with the worker's name, `on_stop` a wish to stop (the web UI's)."""

    def __init__(
        self, host: str, port: int, on_packet: Callable[[str, Packet], None], on_stop: Callable[[], None]
    ) -> None:
        """Raises PlanError when the address cannot be listened on."""
        self.users = 0
        self._on_stop = on_stop
        try:
            super().__init__(Environment(user_classes=[Streams], host=None), host, port)
        except (RPCError, SystemExit) as error:
            raise PlanError(f"{host}:{port} cannot be listened on ({error}); choose another with --bind") from None
        self.environment.runner = self
        self.register_message(MESSAGE, lambda environment, msg: on_packet(msg.node_id, msg.data))

    @property
    def user_count(self) -> int:
        """Requests in flight, as told last."""
        return self.users

    @property
    def port(self) -> int:
        """The port that workers connect to."""
        return int(self.server.port)

    def transmit(self, name: str, packet: Packet) -> None:
        """Send a worker a packet, which may be lost."""
        with contextlib.suppress(RPCError):
            self.send_message(MESSAGE, dict(packet), name)

    def is_missing(self, name: str) -> bool:
        """Whether a worker has not been heard of for some seconds, or has said that it ends."""
        node = self.clients.get(name)
        return node is None or node.state == STATE_MISSING

    def start(self, *arguments: Any, **keywords: Any) -> None:
        """Do nothing: the plan says what users there are."""

    def stop(self, send_stop_to_client: bool = True) -> None:
        """Pass the wish on."""
        self._on_stop()

    def close(self) -> None:
        """Listen no more."""
        self.greenlet.kill(block=True)
        self.server.close(linger=1000)  # type: ignore[no-untyped-call]  # Locust leaves it untyped


def check_host(host: str, port: int) -> None:
    """Raises TargetUnreachable for a name that nobody knows, with which Locust would go on."""
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise TargetUnreachable(f"master {host!r} is no host ({error.strerror}); correct the name") from None


class FollowRunner(WorkerRunner):
    """Locust's worker. `on_lost` is called when the master is gone or wants us to quit; `users` are the driver's."""

    def __init__(self, host: str, port: int, on_packet: Callable[[Packet], None], on_lost: Callable[[], None]) -> None:
        """Waits for the master, up to five minutes. Raises TargetUnreachable when there is none."""
        self.users = 0
        self._on_lost = on_lost
        try:
            super().__init__(Environment(user_classes=[Streams]), host, port)
        except ConnectionError:
            raise TargetUnreachable(f"no master answers at {host}:{port}; start it, or correct the address") from None
        self.environment.runner = self
        self.register_message(MESSAGE, lambda environment, msg: on_packet(msg.data))
        self.worker_state = STATE_RUNNING

    @property
    def user_count(self) -> int:
        """The users of the driver."""
        return self.users

    @property
    def user_classes_count(self) -> dict[str, int]:
        """The same by class."""
        return {Streams.__name__: self.users}

    def transmit(self, packet: Packet) -> None:
        """Send the master a packet, which may be lost."""
        with contextlib.suppress(RPCError):
            self.send_message(MESSAGE, dict(packet))

    def handle_message(self, msg: Any) -> None:
        """As Locust's, but neither spawn nor stop users for it, and end in our own way."""
        if msg.type == "quit":
            self._on_lost()
        elif msg.type not in ("spawn", "stop"):
            super().handle_message(msg)

    def quit(self) -> None:
        """Called when the master has not been heard of for a minute."""
        self._on_lost()

    def logs_reporter(self) -> None:
        """Report none: Locust keeps its own log in memory, and there is nothing in it."""

    def close(self) -> None:
        """Tell the master that we end."""
        with contextlib.suppress(RPCError):
            self.client.send(Message("quit", None, self.client_id))  # type: ignore[no-untyped-call]  # Locust leaves it untyped
        self.greenlet.kill(block=True)
        self.client.close(linger=1000)  # type: ignore[no-untyped-call]  # Locust leaves it untyped
