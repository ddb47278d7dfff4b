"""Bootstrap: how a decode worker finds where a prefill worker sends its KV from.

A prefill worker serves `GET /route` and `GET /health` on its bootstrap port, the one the router names in each
request as `bootstrap_host:bootstrap_port`. The answer is a small JSON object, asked for once per prefill worker.
"""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import asdict, dataclass
from typing import Final

from .errors import TransferError
from .transfer import Address, Layout

_MAXIMUM_BYTES: Final = 1 << 16
_REQUEST_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Route:
    """Where the transfer port is, and what its pages look like."""

    transfer_host: str
    transfer_port: int
    page_size: int
    page_bytes: int
    layout: str


class BootstrapServer:
    """Prefill side; answers from constants, so every request is one read and one write."""

    def __init__(self, route: Route) -> None:
        self._route = json.dumps(asdict(route)).encode()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=_MAXIMUM_BYTES)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.split(b"\r\n", 1)[0]))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            # a peer that sends no request, or too long a one, gets no answer.
            pass
        finally:
            writer.close()

    def _answer(self, request_line: bytes) -> bytes:
        words = request_line.split(b" ")
        path = words[1].split(b"?", 1)[0] if len(words) == 3 and words[0] == b"GET" else b""
        if path == b"/route":
            status, body = b"200 OK", self._route
        elif path == b"/health":
            status, body = b"200 OK", b""
        else:
            status, body = b"404 Not Found", b'{"detail":"Not Found"}'
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        return head % (status, len(body)) + body


class BootstrapClient:
    """Decode side; remembers the route of each prefill worker until it is told to forget it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._routes: dict[Address, Route] = {}

    async def route(self, host: str, port: int) -> Route:
        """The route of the prefill worker at `host:port`.

        Raises TransferError when it cannot be had, or when its pages do not fit this worker's.
        """
        known = self._routes.get((host, port))
        if known is not None:
            return known
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                route = _parse(await _get(host, port, "/route"))
        except (OSError, TimeoutError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise TransferError(f"no route from the bootstrap server at {host}:{port}: {reason}") from None
        if (route.layout, route.page_bytes) != (self._layout.fingerprint, self._layout.page_bytes):
            raise TransferError(
                f"the prefill worker at {host}:{port} has KV layout {route.layout} of {route.page_bytes} bytes a page, "
                f"this worker has {self._layout.fingerprint} of {self._layout.page_bytes}: start both from one model"
            )
        self._routes[host, port] = route
        return route

    def forget(self, host: str, port: int) -> None:
        """Ask again next time: the worker behind the address may be another one now."""
        self._routes.pop((host, port), None)


async def _get(host: str, port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=_MAXIMUM_BYTES)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        answer = b""
        while chunk := await reader.read(_MAXIMUM_BYTES):
            answer += chunk
            if len(answer) > _MAXIMUM_BYTES:
                raise ValueError(f"the answer is longer than {_MAXIMUM_BYTES} bytes")
    finally:
        writer.close()
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator or head.split(b" ")[1:2] != [b"200"]:
        raise ValueError(f"answered {head[:80]!r}")
    return body


def _parse(body: bytes) -> Route:
    try:
        route = Route(**json.loads(body))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a route: {error}") from None
    if not (isinstance(route.transfer_host, str) and isinstance(route.layout, str)):
        raise ValueError("not a route: host and layout must be text")
    if not all(type(number) is int for number in (route.transfer_port, route.page_size, route.page_bytes)):
        raise ValueError("not a route: port and sizes must be integers")
    if not 1 <= route.transfer_port <= 65535:
        raise ValueError(f"not a route: no port is numbered {route.transfer_port}")
    return route
