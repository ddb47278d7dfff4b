"""Endpoints that act on a worker: flush its cache, abort requests, slow it down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.types import Receive, Scope, Send

from . import fields
from .http import TEXT_TYPE, read_json, respond

if TYPE_CHECKING:
    from ..engine import Engine
    from ..service import Service

_FLUSHED: Final = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)
_MAXIMUM_SLEEP_SECONDS: Final = 60.0


class Control:
    """Endpoints that change something."""

    def __init__(self, service: Service, engine: Engine) -> None:
        self._service = service
        self._engine = engine

    async def flush_cache(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Empty the prefix cache; 400 with work in flight."""
        flushed = not self._service.busy and self._engine.flush_cache()
        await respond(send, 200 if flushed else 400, _FLUSHED, TEXT_TYPE)

    async def abort_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stop the request `rid`, or every request with `abort_all`; one that is not here is not an error."""
        body = await read_json(receive)
        rid = fields.text(body, "rid")
        if fields.flag(body, "abort_all"):
            self._service.abort(None)
        elif rid:
            self._service.abort(rid)
        await respond(send, 200, b"", TEXT_TYPE)

    async def slow_down(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sleep `forward_sleep_time` seconds after every step; null ends it."""
        body = await read_json(receive)
        seconds = fields.number(body, "forward_sleep_time", 0.0, 0.0, _MAXIMUM_SLEEP_SECONDS)
        self._service.forward_sleep_seconds = seconds or None
        await respond(send, 200, b"", TEXT_TYPE)
