"""Open sockets to a target: looked up, connected, and with TLS where the target wants it."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import gevent
import gevent.monkey
import gevent.socket

from .arrival import note_arrivals
from .poller import READABLE, WRITABLE, Poller, ReceiveNoted
from .target import Target
from .tls import Tls

_MOST_TUNNEL_BYTES: Final = 64 * 1024

_socket: Any = gevent.monkey.get_original("socket", "socket")
_getaddrinfo: Any = gevent.monkey.get_original("socket", "getaddrinfo")


class Connector:
    """Opens connections to one target, whose name it looks up once. `proxy` is asked for a tunnel to it."""

    def __init__(
        self,
        poller: Poller,
        target: Target,
        context: ssl.SSLContext | None,
        proxy: Target | None,
        timeout_seconds: float,
    ) -> None:
        self.poller = poller
        self._target = target
        self._context = context if target.is_tls else None
        self._proxy = proxy
        self._timeout_seconds = timeout_seconds
        self._addresses: list[tuple[int, Any]] | None = None

    def open(self) -> Connection:
        """Connect, the calling greenlet waiting. Raises OSError."""
        deadline_seconds = time.monotonic() + self._timeout_seconds
        first_error: OSError | None = None
        if self._addresses is None:
            self._addresses = _look_up(self._proxy or self._target)
        for family, address in self._addresses:
            opened = _Opening(self.poller, _socket(family, socket.SOCK_STREAM), deadline_seconds, self._timeout_seconds)
            try:
                return opened.through(address, self._target, self._proxy, self._context)
            except OSError as error:
                opened.give_up()
                first_error = first_error or error
            except BaseException:
                opened.give_up()
                raise
        self._addresses = None
        assert first_error is not None
        raise first_error


class Connection:
    """A connected socket that never blocks; the poller does not watch it yet."""

    def __init__(self, raw: Any, tls: Tls | None) -> None:
        self.descriptor: int = raw.fileno()
        self.send: Callable[[bytes | memoryview], int] = raw.send
        self.receive: Callable[[bytearray], int] = raw.recv_into if tls is None else self._receive_sealed
        self.receive_noted: ReceiveNoted = raw.recvmsg_into if tls is None else self._receive_sealed_noted
        self._socket = raw
        self._tls = tls

    def seal(self, message: bytes) -> bytes:
        """What to send for a message."""
        return message if self._tls is None else self._tls.sealed(message)

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def _receive_sealed(self, buffer: bytearray) -> int:
        return self._receive_sealed_noted([buffer], 0)[0]

    def _receive_sealed_noted(self, buffers: list[bytearray], note_bytes: int) -> tuple[int, list[Any], int, Any]:
        assert self._tls is not None
        with memoryview(buffers[0]) as view:
            count, notes, flags, address = self._socket.recvmsg_into(buffers, note_bytes)
            self._tls.take(view[:count])
            return self._tls.read_into(view), notes, flags, address


class _Opening:
    """A socket on its way to being a Connection."""

    def __init__(self, poller: Poller, raw: Any, deadline_seconds: float, timeout_seconds: float) -> None:
        self._poller = poller
        self._socket = raw
        self._deadline_seconds = deadline_seconds
        self._timeout_seconds = timeout_seconds
        self._is_watched = False
        self._is_waiting = False
        raw.setblocking(False)

    def through(self, address: Any, target: Target, proxy: Target | None, context: ssl.SSLContext | None) -> Connection:
        code = self._socket.connect_ex(address)
        self._greenlet = gevent.getcurrent()
        self._poller.add(self._socket.fileno(), 0, self._event)
        self._is_watched = True
        if code == errno.EINPROGRESS:
            self._wait(WRITABLE)
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if proxy is not None:
            self._tunnel(target)
        tls = None
        if context is not None:
            tls = Tls(context, target.host)
            self._shake_hands(tls)
        self._poller.remove(self._socket.fileno())
        note_arrivals(self._socket)
        return Connection(self._socket, tls)

    def give_up(self) -> None:
        if self._is_watched:
            self._poller.remove(self._socket.fileno())
        self._socket.close()

    def _shake_hands(self, tls: Tls) -> None:
        while not (is_done := tls.has_shaken_hands()):
            self._send_all(tls.outgoing())
            tls.take(memoryview(self._receive(16 * 1024)))
        assert is_done
        self._send_all(tls.outgoing())

    def _tunnel(self, target: Target) -> None:
        host = f"[{target.host}]" if ":" in target.host else target.host
        self._send_all(f"CONNECT {host}:{target.port} HTTP/1.1\r\nHost: {host}:{target.port}\r\n\r\n".encode("ascii"))
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _MOST_TUNNEL_BYTES:
            # nothing follows the proxy's answer before we speak, so that a large read takes none of the target's.
            if not (more := self._receive(4096)):
                break
            head += more
        status = head.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise OSError(errno.ECONNREFUSED, f"the proxy gives no tunnel: {status or 'no answer'}")

    def _send_all(self, message: bytes) -> None:
        view = memoryview(message)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait(WRITABLE)

    def _receive(self, size: int) -> bytes:
        while True:
            try:
                data: bytes = self._socket.recv(size)
                return data
            except BlockingIOError:
                self._wait(READABLE)

    def _event(self, events: int) -> None:
        self._wake()

    def _wake(self) -> None:
        # what is ready stays so until the greenlet runs, and is told of again meanwhile.
        if self._is_waiting:
            self._is_waiting = False
            self._poller.wake(self._greenlet)

    def _wait(self, events: int) -> None:
        left_seconds = self._deadline_seconds - time.monotonic()
        if left_seconds <= 0:
            raise self._too_late()
        timer = self._poller.timer(left_seconds)
        is_late = False

        def ring() -> None:
            nonlocal is_late
            is_late = True
            self._wake()

        self._poller.arm(timer, ring)
        self._poller.change(self._socket.fileno(), events)
        self._is_waiting = True
        try:
            self._poller.wait()
        finally:
            self._is_waiting = False
            timer.stop()
            timer.close()
            self._poller.change(self._socket.fileno(), 0)
        if is_late:
            raise self._too_late()

    def _too_late(self) -> OSError:
        return TimeoutError(errno.ETIMEDOUT, f"no connection within {self._timeout_seconds:g} s")


def _look_up(target: Target) -> list[tuple[int, Any]]:
    """Addresses of a target. Raises OSError."""
    try:
        found = _getaddrinfo(target.host, target.port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except OSError:
        # a name: the look-up may take long, so it is a thread's.
        found = gevent.socket.getaddrinfo(target.host, target.port, 0, socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]
