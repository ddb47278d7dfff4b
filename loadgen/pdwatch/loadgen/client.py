"""A streaming HTTP/1.1 client on gevent sockets that stamps bytes and leaves their meaning for later.

While a response streams, each read costs a receive, a stamp and an append. Dechunking, server-sent events and JSON
wait until it has ended.
"""

from __future__ import annotations

import select
import time
from typing import Any, Final

import gevent
import gevent.monkey
import gevent.socket
import gevent.ssl

from .exchange import End, Exchange
from .framing import ResponseEnd
from .request import Cancel
from .target import Target

READ_BYTES: Final = 16 * 1024

# a look that never waits, also where gevent has replaced the module's own.
_poll = gevent.monkey.get_original("select", "poll")


class _GaveUp(BaseException):
    """Raised in the user's greenlet when it is time to disconnect."""


class _TimedOut(BaseException):
    """Raised in the user's greenlet at the request timeout."""


class StreamClient:
    """One user's connection to one target, kept alive between requests. Not for use by two greenlets at once."""

    def __init__(
        self,
        target: Target,
        *,
        connect_timeout_seconds: float,
        request_timeout_seconds: float,
        most_response_bytes: int,
    ) -> None:
        self._target = target
        self._connect_timeout_seconds = connect_timeout_seconds
        self._request_timeout_seconds = request_timeout_seconds
        self._most_response_bytes = most_response_bytes
        self._context = gevent.ssl.create_default_context() if target.is_tls else None
        self._socket: Any = None

    def exchange(self, message: bytes, cancel: Cancel | None = None) -> Exchange:
        """Send one whole HTTP request and read its response to the end; failures are told in `end`, not raised.

        Killing the greenlet meanwhile disconnects and ends the exchange as cancelled; the caller sees to stopping.
        """
        exchange = Exchange(time.monotonic(), time.time())
        if not self._is_usable():
            try:
                self._connect()
            except OSError as error:
                self.close()
                exchange.end, exchange.detail = End.NO_CONNECTION, _reason(error)
                exchange.ended_seconds = time.monotonic()
                exchange.connect_seconds = exchange.ended_seconds - exchange.sent_seconds
                return exchange
            exchange.connect_seconds = time.monotonic() - exchange.sent_seconds
        response = ResponseEnd()
        self._stream(message, cancel, exchange, response)
        has_ended = exchange.end is End.ENDED and bool(exchange.read_seconds)
        exchange.ended_seconds = exchange.read_seconds[-1] if has_ended else time.monotonic()
        if exchange.end is not End.ENDED or not response.parser.may_keep:
            self.close()
        return exchange

    def close(self) -> None:
        """Disconnect; the next exchange connects anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _stream(self, message: bytes, cancel: Cancel | None, exchange: Exchange, response: ResponseEnd) -> None:
        """Send, then read until the response is over or something else ends the exchange."""
        most_reads = cancel.after_reads if cancel else None
        left_bytes = self._most_response_bytes
        stamps = exchange.read_seconds
        receive, clock, is_over = self._socket.recv, time.monotonic, response.reached
        add_stamp, add_data = stamps.append, exchange.read_data.append
        timers = [gevent.Timeout.start_new(self._request_timeout_seconds, _TimedOut)]
        if cancel and cancel.after_seconds is not None:
            timers.append(gevent.Timeout.start_new(cancel.after_seconds, _GaveUp))
        try:
            exchange.sent_unix_seconds, exchange.sent_seconds = time.time(), clock()
            self._socket.sendall(message)
            while data := receive(READ_BYTES):
                add_stamp(clock())
                add_data(data)
                if is_over(data):
                    return
                if most_reads is not None and len(stamps) >= most_reads:
                    raise _GaveUp
                left_bytes -= len(data)
                if left_bytes < 0:
                    exchange.end = End.TOO_LONG
                    exchange.detail = f"the response is over {self._most_response_bytes} bytes"
                    return
            exchange.end, exchange.detail = End.CLOSED, "the server closed the connection before the response ended"
        except OSError as error:
            exchange.end, exchange.detail = End.BROKEN, _reason(error)
        except _TimedOut:
            exchange.end = End.TIMEOUT
            exchange.detail = f"no end after {self._request_timeout_seconds:g} s"
        except _GaveUp:
            exchange.end, exchange.detail = End.CANCELLED, _plan_of(cancel)
        except gevent.GreenletExit:
            exchange.end, exchange.detail = End.CANCELLED, "the run was stopped"
        finally:
            for timer in timers:
                timer.close()

    def _connect(self) -> None:
        self._socket = gevent.socket.create_connection(
            (self._target.host, self._target.port), timeout=self._connect_timeout_seconds
        )
        self._socket.setsockopt(gevent.socket.IPPROTO_TCP, gevent.socket.TCP_NODELAY, 1)
        if self._context is not None:
            self._socket = self._context.wrap_socket(self._socket, server_hostname=self._target.host)
        # from here on the request's own timer bounds every wait.
        self._socket.settimeout(None)

    def _is_usable(self) -> bool:
        """Whether the kept connection is still open: an idle one has nothing to read, not even its end."""
        if self._socket is None:
            return False
        look = _poll()
        look.register(self._socket.fileno(), select.POLLIN)
        if look.poll(0):
            self.close()
        return self._socket is not None


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _plan_of(cancel: Cancel | None) -> str:
    if cancel is None:
        return ""
    if cancel.after_seconds is not None:
        return f"we disconnected {cancel.after_seconds * 1000:.0f} ms after sending, as planned"
    return f"we disconnected after {cancel.after_reads} reads, as planned"
