"""The bootstrap server, and decode workers asking it."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import asdict

import httpx
import pytest

from pdwatch.stack.embedded.bootstrap import BootstrapClient, BootstrapServer, Route
from pdwatch.stack.embedded.errors import TransferError
from pdwatch.stack.embedded.transfer import Layout

LAYOUT = Layout("same", 4096)
ROUTE = Route("127.0.0.1", 4242, 64, 4096, "same")


async def started(route: Route = ROUTE) -> tuple[BootstrapServer, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = BootstrapServer(route)
    await server.start(listener)
    return server, listener.getsockname()[1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/route", 200),
        ("GET", "/route?engine_rank=0", 200),
        ("GET", "/health", 200),
        ("GET", "/", 404),
        ("POST", "/route", 404),
    ],
)
async def test_answers_over_http(method: str, path: str, status: int) -> None:
    server, port = await started()
    async with httpx.AsyncClient() as client:
        answer = await client.request(method, f"http://127.0.0.1:{port}{path}")
    assert answer.status_code == status
    if path.startswith("/route") and method == "GET":
        assert Route(**answer.json()) == ROUTE
    await server.close()


@pytest.mark.parametrize("sent", [b"\r\n\r\n", b"\xff\0\r\n\r\n", b"A" * (1 << 17)], ids=["empty", "binary", "long"])
async def test_survives_garbage(sent: bytes) -> None:
    server, port = await started()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        assert b"200" not in (await reader.read())[:12]
    except ConnectionResetError:
        pass
    writer.close()
    assert await BootstrapClient(LAYOUT).route("127.0.0.1", port) == ROUTE
    await server.close()


async def test_a_route_is_asked_for_once_until_forgotten() -> None:
    server, port = await started()
    client = BootstrapClient(LAYOUT)
    assert await client.route("127.0.0.1", port) == ROUTE
    await server.close()
    assert await client.route("127.0.0.1", port) == ROUTE
    client.forget("127.0.0.1", port)
    with pytest.raises(TransferError, match=f"no route from the bootstrap server at 127.0.0.1:{port}"):
        await client.route("127.0.0.1", port)


async def test_workers_of_different_models_do_not_meet() -> None:
    server, port = await started(Route("127.0.0.1", 4242, 64, 4096, "other"))
    with pytest.raises(TransferError, match="start both from one model"):
        await BootstrapClient(LAYOUT).route("127.0.0.1", port)
    await server.close()


def no_route(**fields: object) -> bytes:
    """An answer with `fields` in place of those of a good route."""
    return b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(asdict(ROUTE) | fields).encode()


NO_ROUTES = {
    "not found": b"HTTP/1.1 404 Not Found\r\n\r\n",
    "not HTTP": b"hello",
    "not JSON": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "a list": b"HTTP/1.1 200 OK\r\n\r\n[1]",
    "too few fields": b"HTTP/1.1 200 OK\r\n\r\n{}",
    "port as text": no_route(transfer_port="1"),
    "port 0": no_route(transfer_port=0),
    "port 65536": no_route(transfer_port=65536),
    "too long": b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (1 << 17),
}


@pytest.mark.parametrize("answer", NO_ROUTES.values(), ids=NO_ROUTES.keys())
async def test_an_answer_that_is_no_route_is_refused(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TransferError, match="no route from the bootstrap server"):
        await BootstrapClient(LAYOUT).route("127.0.0.1", port)
    server.close()
