"""The worker's ASGI application: routes, HTTP metrics, and the one place where errors become answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import EngineError
from .completions import ChatCompletions
from .control import Control
from .generate import Generate
from .http import error_object, respond_json
from .information import Information
from .outputs import ClientGone, RequestFailed

if TYPE_CHECKING:
    from ..metrics import WorkerMetrics

_log = logging.getLogger(__name__)


class Application:
    """Counts each request, routes it, and answers what its endpoint raises in SGLang's error shape."""

    def __init__(
        self,
        metrics: WorkerMetrics,
        completions: ChatCompletions,
        generate: Generate,
        information: Information,
        control: Control,
    ) -> None:
        self._metrics = metrics
        endpoints: list[tuple[str, str, ASGIApp]] = [
            ("POST", "/v1/chat/completions", completions),
            ("POST", "/generate", generate),
            ("GET", "/health", information.health),
            ("GET", "/v1/models", information.models),
            ("GET", "/server_info", information.server_info),
            ("GET", "/get_server_info", information.server_info),
            ("GET", "/model_info", information.model_info),
            ("GET", "/get_model_info", information.model_info),
            ("GET", "/v1/loads", information.loads),
            ("GET", "/get_load", information.load),
            ("GET", "/metrics", information.metrics),
            ("GET", "/flush_cache", control.flush_cache),
            ("POST", "/flush_cache", control.flush_cache),
            ("POST", "/abort_request", control.abort_request),
            ("POST", "/slow_down", control.slow_down),
        ]
        self._endpoints = {(method, path): app for method, path, app in endpoints}
        self._paths = {path for _, path in self._endpoints}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            return
        method = scope["method"]
        # a path nobody serves is counted under one name, so that hostile paths cannot grow the metrics.
        endpoint = scope["path"] if scope["path"] in self._paths else "/*"
        status: int | None = None

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.http_started(endpoint, method)
        try:
            await self._answer(scope, receive, noting_send)
        except (EngineError, RequestFailed) as error:
            failure = error if isinstance(error, RequestFailed) else RequestFailed(400, "BadRequestError", str(error))
            await respond_json(noting_send, failure.status, error_object(failure))
        except RecursionError:
            # an answer that has begun cannot become another one.
            if status is not None:
                raise
            failure = RequestFailed(400, "BadRequestError", "the body is nested too deeply")
            await respond_json(noting_send, failure.status, error_object(failure))
        except ClientGone as gone:
            _log.info("%s", gone)
        finally:
            self._metrics.http_ended(endpoint, method, status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is not None:
            await endpoint(scope, receive, send)
        elif scope["path"] in self._paths:
            await respond_json(send, 405, {"detail": "Method Not Allowed"})
        else:
            await respond_json(send, 404, {"detail": "Not Found"})
