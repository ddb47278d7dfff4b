"""HTTP bodies: read with a limit, answered with raw ASGI messages, errors in SGLang's shape."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import orjson
from starlette.types import Receive, Send

from .outputs import RequestFailed

MAXIMUM_BODY_BYTES: Final = 8 << 20
JSON_TYPE: Final = b"application/json"
TEXT_TYPE: Final = b"text/plain; charset=utf-8"


async def read_json(receive: Receive) -> dict[str, Any]:
    """The request's body as a JSON object. Raises RequestFailed (400, 413) when it is anything else."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestFailed(400, "Bad Request", "the client closed the connection before the end of the body")
        body += message.get("body", b"")
        if len(body) > MAXIMUM_BODY_BYTES:
            raise RequestFailed(413, "Request Entity Too Large", f"the body is longer than {MAXIMUM_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            break
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestFailed(400, "Bad Request", f"JSON decode error: {error}") from None
    if not isinstance(value, dict):
        raise RequestFailed(400, "Bad Request", f"the body must be a JSON object, got {type(value).__name__}")
    return value


async def respond(send: Send, status: int, body: bytes, content_type: bytes = JSON_TYPE) -> None:
    """A whole answer."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def respond_json(send: Send, status: int, value: Any) -> None:
    """A whole answer in JSON."""
    await respond(send, status, orjson.dumps(value))


async def start_events(send: Send) -> None:
    """Head of a server-sent event stream."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def error_object(failure: RequestFailed) -> dict[str, Any]:
    """SGLang's error object, the whole body of an OpenAI endpoint's error."""
    return {
        "object": "error",
        "message": failure.message,
        "type": failure.kind,
        "param": None,
        "code": failure.status,
    }


@contextlib.asynccontextmanager
async def on_disconnect(receive: Receive, gone: Callable[[], None]) -> AsyncIterator[None]:
    """Call `gone` once if the client closes its connection while the block runs."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
