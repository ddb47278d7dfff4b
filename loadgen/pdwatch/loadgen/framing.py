"""An HTTP/1.1 response's parts, and where it ends, found with next to no work on each read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import httptools

_MOST_HEADER_BYTES: Final = 64 * 1024
_CHUNKED_END: Final = b"\r\n\r\n"


class ResponseParser:
    """Parses one response; the body is left to subclasses, so that following a response costs no copy of it."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_complete = False
        self.error: str | None = None
        self._header_bytes = 0
        self._is_reusable = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bool:
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
            self.error = None if self.is_complete else f"not an HTTP response: {error}"
        if not self.has_head and self._header_bytes > _MOST_HEADER_BYTES:
            self.error = f"the response's head is over {_MOST_HEADER_BYTES} bytes"
        return self.is_complete or self.error is not None

    def connection_closed(self) -> None:
        """The server closed the connection: that ends a body which has neither a length nor chunks."""
        has_end = "content-length" in self.headers or self.is_chunked
        self.is_complete = self.is_complete or (self.has_head and self.error is None and not has_end)

    @property
    def status(self) -> int | None:
        """The status code; None before the head is whole."""
        return self._parser.get_status_code() if self.has_head else None

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def may_keep(self) -> bool:
        """Whether the connection can carry another request."""
        return self.is_complete and self.error is None and self._is_reusable

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Called by the parser; a 1xx response goes before the real one."""
        self.has_head = self._parser.get_status_code() >= 200
        if not self.has_head:
            self.headers.clear()

    def on_message_complete(self) -> None:
        """Called by the parser, which forgets the answer to its question right after."""
        self.is_complete = self.has_head
        self._is_reusable = self._parser.should_keep_alive()


class ResponseEnd:
    """Tells whether a response has ended, for the path where each read is stamped.

    Once a chunked body has begun, reads are only kept: whatever ends such a body ends in an empty line, so the parser
    runs when the latest bytes are one. Everything else is parsed at once.
    """

    def __init__(self) -> None:
        self.parser = ResponseParser()
        self._is_lazy = False
        self._kept: list[bytes] = []
        self._tail = b""

    def reached(self, data: bytes) -> bool:
        """Take one read's bytes; whether the response is over."""
        if self._is_lazy:
            self._kept.append(data)
            self._tail = data[-4:] if len(data) > 3 else (self._tail + data)[-4:]
            if self._tail != _CHUNKED_END:
                return False
            data = b"".join(self._kept)
            self._kept.clear()
        is_over = self.parser.feed(data)
        self._is_lazy = self.parser.has_head and self.parser.is_chunked
        return is_over


@dataclass(frozen=True, slots=True)
class Response:
    """A response read back: its body as one piece a read that brought any, with the read's time."""

    status: int | None
    headers: dict[str, str]
    chunks: tuple[tuple[float, bytes], ...]
    is_complete: bool
    error: str | None


def parse_response(reads: Iterable[tuple[float, bytes]], *, is_closed: bool) -> Response:
    """Parse what the reads brought; `is_closed`: the server closed the connection after them."""
    parser = _BodyParser()
    chunks: list[tuple[float, bytes]] = []
    for seconds, data in reads:
        parser.feed(data)
        if parser.parts:
            chunks.append((seconds, b"".join(parser.parts)))
            parser.parts.clear()
    if is_closed:
        parser.connection_closed()
    return Response(parser.status, parser.headers, tuple(chunks), parser.is_complete, parser.error)


class _BodyParser(ResponseParser):
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        super().__init__()

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)
