"""Loopback ports, held from the moment they are chosen until their server listens."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from pdwatch.stack.errors import PortInUse

HOST = "127.0.0.1"


class PortReservation:
    """A port that nobody else is given while this object holds it.

    The holding socket is bound with SO_REUSEADDR and never listens: the kernel then gives the port to no one who asks
    for a free one, while a server that binds it by number with SO_REUSEADDR, as servers do, may listen on it.
    """

    def __init__(self, name: str, port: int | None = None) -> None:
        """Reserve ``port``, or a free one. Raises PortInUse when ``port`` is asked for and cannot be bound."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port or 0))
        except OSError as error:
            self._socket.close()
            if port is None:
                raise
            raise PortInUse(port, name, (error.strerror or str(error)).lower()) from error
        self.name = name
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let the port go; harmless when repeated."""
        self._socket.close()


class PortTable:
    """The reservations of one deployment, by name."""

    def __init__(self, asked_for: Mapping[str, int]) -> None:
        self._asked_for = asked_for
        self._reservations: dict[str, PortReservation] = {}

    def reserve(self, name: str) -> int:
        """Reserve the port asked for under ``name``, or a free one. Raises PortInUse."""
        reservation = PortReservation(name, self._asked_for.get(name))
        self._reservations[name] = reservation
        return reservation.port

    def port(self, name: str) -> int:
        """The port reserved under ``name``."""
        return self._reservations[name].port

    def release(self) -> None:
        """Let all ports go; harmless when repeated."""
        for reservation in self._reservations.values():
            reservation.release()
