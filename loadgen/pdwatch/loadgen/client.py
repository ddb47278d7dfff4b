"""A streaming HTTP/1.1 client that stamps bytes and leaves their meaning for later.

While a response streams, the poller receives, stamps and appends. Dechunking, server-sent events and JSON wait until
it has ended, and are another process's work.
"""

from __future__ import annotations

import ssl
import time
from typing import Any, Final

import gevent

from .connection import Connection, Connector
from .descriptors import is_own_limit
from .exchange import End, Exchange
from .framing import ResponseEnd
from .meter import Meter
from .poller import READABLE, WRITABLE, Reading
from .request import Cancel

STOPPED: Final = "the run was stopped"

_SEND_BYTES: Final = 256 * 1024
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError)


class StreamClient:
    """One user's connection to one target, kept alive between requests. Not for use by two greenlets at once."""

    def __init__(
        self, connector: Connector, *, request_timeout_seconds: float, most_response_bytes: int, meter: Meter
    ) -> None:
        self._connector = connector
        self._poller = connector.poller
        self._request_timeout_seconds = request_timeout_seconds
        self._most_response_bytes = most_response_bytes
        self._meter = meter
        self._connection: Connection | None = None
        self._opening_seconds: float | None = None
        self._timer: Any = self._poller.timer(request_timeout_seconds)
        self._greenlet: Any = None
        self._exchange: Exchange | None = None
        self._is_taken = False
        self._is_held_up = False
        self._response = ResponseEnd()
        self._most_reads: int | None = None
        self._unsent: memoryview | None = None
        self._send_error: OSError | None = None
        self._reading = Reading()
        self._reading.look = self._look
        self._reading.closed = self._closed
        self._reading.failed = self._failed
        self._reading.most_bytes = most_response_bytes

    @property
    def is_connected(self) -> bool:
        """Whether a connection is kept, as far as the hub has heard."""
        return self._connection is not None

    def open(self) -> None:
        """Connect ahead of the next exchange, unless the kept connection is still good. Raises OSError."""
        if self._connection is not None:
            if self._is_idle(self._connection):
                return
            self._disconnect()
        started_seconds = time.monotonic()
        connection = self._connector.open()
        self._opening_seconds = time.monotonic() - started_seconds
        self._connection = connection
        self._reading.receive, self._reading.receive_noted = connection.receive, connection.receive_noted
        self._poller.add(connection.descriptor, READABLE, self._event)

    def exchange(
        self, message: bytes, cancel: Cancel | None = None, scheduled_seconds: float | None = None
    ) -> Exchange:
        """Send one whole HTTP request and read its response to the end; failures are told in `end`, not raised.

        Killing the greenlet meanwhile disconnects and ends the exchange as cancelled, with the detail STOPPED; the
        caller sees to stopping.
        """
        exchange = Exchange(scheduled_seconds, time.monotonic(), time.time())
        try:
            self.open()
        except OSError as error:
            exchange.end, exchange.detail = End.NO_CONNECTION, _reason(error)
            if is_own_limit(error):
                self._meter.note_refusal()
                exchange.detail = f"this machine's own limit: {exchange.detail}"
        except gevent.GreenletExit:
            exchange.end, exchange.detail = End.CANCELLED, STOPPED
        connection = self._connection
        if connection is None:
            exchange.ended_seconds = time.monotonic()
            exchange.connect_seconds = exchange.ended_seconds - exchange.sent_seconds
            return exchange
        exchange.connect_seconds, self._opening_seconds = self._opening_seconds, None
        alarm = self._begin(connection, exchange, cancel)
        try:
            self._send(connection, connection.seal(message))
            self._poller.wait()
        except gevent.GreenletExit:
            exchange.end, exchange.detail = End.CANCELLED, STOPPED
        finally:
            self._timer.stop()
            if alarm is not None:
                alarm.stop()
                alarm.close()
        self._finish(connection, exchange)
        return exchange

    def answer(self, exchange: Exchange) -> tuple[int | None, str | None]:
        """Status and Retry-After of the last exchange's response, both None where it has not come whole."""
        parser = self._response.parser
        if exchange.end is End.CLOSED:
            parser.connection_closed()
        if exchange.end not in (End.ENDED, End.CLOSED) or not parser.is_complete:
            return None, None
        return parser.status, parser.headers.get("retry-after")

    def hold_up(self) -> None:
        """Its user rests after a failure: it is held up until its next request is sent."""
        if not self._is_held_up:
            self._is_held_up = True
            self._meter.hold_up()

    def let_go(self) -> None:
        """Its user is held up no more."""
        if self._is_held_up:
            self._is_held_up = False
            self._meter.let_go()

    def close(self) -> None:
        """Disconnect for good."""
        self.let_go()
        self._timer.close()
        if self._connection is not None:
            self._disconnect()

    def _begin(self, connection: Connection, exchange: Exchange, cancel: Cancel | None) -> Any:
        reading = self._reading
        self._exchange = exchange
        self._is_taken = True
        self._greenlet = gevent.getcurrent()
        self._response = ResponseEnd()
        self._send_error = None
        self._most_reads = None if cancel is None else cancel.after_reads
        reading.raw = exchange.raw
        reading.tail = b""
        reading.add_stamp = exchange.read_seconds.append
        reading.add_size = exchange.read_bytes.append
        self._poller.begin(connection.descriptor, reading)
        self._poller.arm(self._timer, self._timed_out)
        if cancel is None or cancel.after_seconds is None:
            return None
        alarm = self._poller.timer(cancel.after_seconds)
        text = f"we disconnected {cancel.after_seconds * 1000:.0f} ms after sending, as planned"
        self._poller.arm(alarm, lambda: self._end(End.CANCELLED, text))
        return alarm

    def _send(self, connection: Connection, message: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._unsent = memoryview(message)
        self.let_go()
        exchange.sent_unix_seconds, exchange.sent_seconds = time.time(), time.monotonic()
        self._meter.sent(exchange.scheduled_seconds, exchange.sent_seconds)
        self._meter.unsent_bytes += len(message)
        if not self._send_more(connection):
            self._meter.note_backlog()
            self._poller.change(connection.descriptor, READABLE | WRITABLE)

    def _send_more(self, connection: Connection) -> bool:
        """Send what the socket takes; whether that was the last. If not, the rest waits until it is writable."""
        assert self._unsent is not None
        try:
            count = connection.send(self._unsent[:_SEND_BYTES])
        except BlockingIOError:
            return False
        except OSError as error:
            # an answer may have come all the same, and is read first.
            self._send_error = error
            count = len(self._unsent)
        self._meter.unsent_bytes -= count
        self._unsent = self._unsent[count:] or None
        return self._unsent is None

    def _finish(self, connection: Connection, exchange: Exchange) -> None:
        self._exchange = None
        self._is_taken = False
        self._poller.end(connection.descriptor)
        has_ended = exchange.end is End.ENDED and bool(exchange.read_seconds)
        exchange.ended_seconds = exchange.read_seconds[-1] if has_ended else time.monotonic()
        self._meter.ended(exchange.ended_seconds)
        if self._unsent is not None:
            self._meter.unsent_bytes -= len(self._unsent)
            self._unsent = None
            self._disconnect()
        elif exchange.end is not End.ENDED or not self._response.parser.may_keep:
            self._disconnect()

    def _disconnect(self) -> None:
        assert self._connection is not None
        self._poller.remove(self._connection.descriptor)
        self._connection.close()
        self._connection = None
        self._opening_seconds = None

    def _is_idle(self, connection: Connection) -> bool:
        """Whether a connection between two exchanges is still open: it has nothing to read, not even its end."""
        try:
            connection.receive(self._poller.buffer)
        except _WOULD_BLOCK:
            return True
        except OSError:
            return False
        return False

    # what follows runs in the hub.

    def _event(self, events: int) -> None:
        connection, exchange = self._connection, self._exchange
        if connection is None:
            return
        if exchange is None:
            # one that has just ended is not idle before its greenlet has run.
            if not self._is_taken and not self._is_idle(connection):
                self._disconnect()
        elif events & WRITABLE and self._unsent is not None:
            if self._send_more(connection):
                self._meter.note_sending(time.monotonic() - exchange.sent_seconds)
                self._poller.change(connection.descriptor, READABLE)

    def _look(self) -> None:
        exchange, reading = self._exchange, self._reading
        assert exchange is not None
        if len(exchange.raw) > self._most_response_bytes:
            self._end(End.TOO_LONG, f"the response is over {self._most_response_bytes} bytes")
        elif self._response.reached(exchange.raw):
            self._end(End.ENDED, "")
        elif self._most_reads is not None and len(exchange.read_seconds) >= self._most_reads:
            self._end(End.CANCELLED, f"we disconnected after {self._most_reads} reads, as planned")
        elif self._most_reads is None:
            reading.tail = self._response.tail

    def _closed(self) -> None:
        if self._send_error is not None:
            self._end(End.BROKEN, _reason(self._send_error))
        else:
            self._end(End.CLOSED, "the server closed the connection before the response ended")

    def _failed(self, error: OSError) -> None:
        if not isinstance(error, _WOULD_BLOCK):
            self._end(End.BROKEN, _reason(error))

    def _timed_out(self) -> None:
        exchange = self._exchange
        # what ends in good order and goes on with bytes that nobody asked for ends only here.
        if exchange is not None and self._response.reached(exchange.raw):
            self._end(End.ENDED, "")
        else:
            self._end(End.TIMEOUT, f"no end after {self._request_timeout_seconds:g} s")

    def _end(self, end: End, detail: str) -> None:
        exchange, connection = self._exchange, self._connection
        if exchange is None or connection is None:
            return
        exchange.end, exchange.detail = end, detail
        self._exchange = None
        self._poller.end(connection.descriptor)
        self._poller.wake(self._greenlet)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
