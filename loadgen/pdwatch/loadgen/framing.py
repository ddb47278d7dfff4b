"""An HTTP/1.1 response's parts, and where it ends, found with next to no work on each read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

import httptools

from .body import Body
from .exchange import End, Exchange

_MOST_HEADER_BYTES: Final = 64 * 1024
_CHUNKED_END: Final = b"\r\n\r\n"


class ResponseParser:
    """Parses one response; the body is left to subclasses, so that following a response costs no copy of it.

    `status` is None before the head is whole.
    """

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.status: int | None = None
        self.has_head = False
        self.is_complete = False
        self.error: str | None = None
        self._header_bytes = 0
        self._field_bytes = 0
        self._is_reusable = False
        self._has_surplus = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes | memoryview) -> bool:
        """Take bytes; whether the response is over, rightly or by an error. What comes after its end is ignored."""
        if self.is_complete or self.error is not None:
            return True
        if not self.has_head:
            self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.error = "the server switched protocols"
        except httptools.HttpParserError as error:
            # bytes after the end make the parser fail too, and change nothing about the response.
            self._has_surplus = self.is_complete
            self.error = None if self.is_complete else f"not an HTTP response: {error}"
        if not self.has_head and self._header_bytes > _MOST_HEADER_BYTES:
            self.error = f"the response's head is over {_MOST_HEADER_BYTES} bytes"
        return self.is_complete or self.error is not None

    def connection_closed(self) -> None:
        """The server closed the connection: that ends a body which has neither a length nor chunks."""
        has_end = "content-length" in self.headers or self.is_chunked
        self.is_complete = self.is_complete or (self.has_head and self.error is None and not has_end)

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def may_keep(self) -> bool:
        """Whether the connection can carry another request."""
        return self.is_complete and self.error is None and self._is_reusable and not self._has_surplus

    def on_message_begin(self) -> None:
        """Called by the parser; nobody has asked for what comes after the response."""
        self._has_surplus = self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser, for trailers too, which are not kept."""
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > _MOST_HEADER_BYTES and self.error is None:
            self.error = f"the response's head is over {_MOST_HEADER_BYTES} bytes"
        if self.has_head or self.error is not None:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Called by the parser; a 1xx response goes before the real one."""
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        self.has_head = status >= 200
        if self.has_head:
            self.status = status
        else:
            self.headers.clear()

    def on_message_complete(self) -> None:
        """Called by the parser, which forgets the answer to its question right after."""
        if not self.is_complete:
            self.is_complete = self.has_head
            self._is_reusable = self._parser.should_keep_alive()


class ResponseEnd:
    """Tells whether a response has ended, for the path where each read is stamped.

    Once a chunked body has begun, the parser runs only when the latest bytes are an empty line, for whatever ends such
    a body ends in one: until then `tail` is what the bytes must end in. Everything else is parsed at once.
    """

    __slots__ = ("_fed_bytes", "parser", "tail")

    def __init__(self) -> None:
        self.parser = ResponseParser()
        self.tail = b""
        self._fed_bytes = 0

    def reached(self, raw: bytearray) -> bool:
        """Whether the response is over, `raw` being all that has come of it."""
        with memoryview(raw) as view, view[self._fed_bytes :] as news:
            is_over = self.parser.feed(news)
        self._fed_bytes = len(raw)
        if self.parser.has_head and self.parser.is_chunked:
            self.tail = _CHUNKED_END
        return is_over


@dataclass(frozen=True, slots=True)
class Response:
    """A response read back."""

    status: int | None
    headers: dict[str, str]
    body: Body
    is_complete: bool
    error: str | None


def parse_response(exchange: Exchange) -> Response:
    """Parse what an exchange's reads brought."""
    parser = _BodyParser()
    parts = parser.parts
    ends, seconds = array("Q"), array("d")
    start = total = known = 0
    with memoryview(exchange.raw) as whole:
        for read_seconds, size in zip(exchange.read_seconds, exchange.read_bytes, strict=True):
            is_over = parser.feed(whole[start : start + size])
            start += size
            if known < len(parts):
                while known < len(parts):
                    total += len(parts[known])
                    known += 1
                ends.append(total)
                seconds.append(read_seconds)
            if is_over:
                break
    if exchange.end is End.CLOSED:
        parser.connection_closed()
    return Response(
        parser.status, parser.headers, Body(b"".join(parts), ends, seconds), parser.is_complete, parser.error
    )


class _BodyParser(ResponseParser):
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        super().__init__()

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.parts.append(body)
