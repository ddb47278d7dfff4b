"""Questions that any model server answers, over the standard library's client: importing another one costs more CPU
than a small load run does."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final

from pdwatch.gate.errors import NoModelList, TargetError
from pdwatch.gate.redact import redact_url
from pdwatch.loadgen.errors import PlanError
from pdwatch.loadgen.target import Target

TIMEOUT_SECONDS: Final = 5.0
MAXIMUM_MODEL_CHARACTERS: Final = 256
MAXIMUM_BODY_BYTES: Final = 2 * 2**20

# SGLang renamed this route; older servers have only the second.
INFO_PATHS: Final = ("/server_info", "/get_server_info")

# settings of SGLang's that no other server has under these names; one of them, anywhere near the top, tells it.
SGLANG_FIELDS: Final = frozenset({"disaggregation_mode", "mem_fraction_static", "disable_radix_cache"})


class Unanswered(Exception):
    """Nobody answered, or not in HTTP."""


class Refused(Exception):
    """The answer is an HTTP status that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


def get(
    url: str, path: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and body of one GET below a base URL, past any proxy. Raises Unanswered, and ValueError for a body of more
    than 2 MiB."""
    try:
        target = Target.parse(url)
    except PlanError as error:
        raise Unanswered(str(error)) from error
    connection: http.client.HTTPConnection
    if target.is_tls:
        connection = http.client.HTTPSConnection(target.host, target.port, timeout=TIMEOUT_SECONDS, context=tls)
    else:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", target.prefix + path, headers={**(headers or {}), "Connection": "close"})
        with connection.getresponse() as response:
            body = response.read(MAXIMUM_BODY_BYTES + 1)
    except (http.client.HTTPException, OSError, UnicodeError) as error:
        # a host that is no name is told by its encoder.
        raise Unanswered(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if len(body) > MAXIMUM_BODY_BYTES:
        raise ValueError(f"more than {MAXIMUM_BODY_BYTES} bytes")
    return response.status, body


def get_json(url: str, path: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None) -> Any:
    """What a GET answers. Raises Unanswered, Refused, and ValueError for what is too long or no JSON."""
    status, body = get(url, path, headers, tls)
    if not 200 <= status < 300:
        raise Refused(status)
    return json.loads(body)


def authorization(environment: str | None) -> dict[str, str]:
    """The header with the token that an environment variable holds. Raises TargetError when it holds none."""
    if environment is None:
        return {}
    token = os.environ.get(environment)
    if not token:
        raise TargetError(f"environment variable `{environment}` is empty: put the bearer token in it")
    if not token.isascii() or not token.isprintable():
        raise TargetError(f"environment variable `{environment}` holds more than a token: put one line of ASCII in it")
    return {"Authorization": f"Bearer {token}"}


def served_models(
    url: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> tuple[str, ...]:
    """Names of the models that a target serves, one at least.

    Raises NoModelList when it answers something else, and TargetError when it does not answer or refuses us.
    """
    shown = redact_url(url)
    try:
        answer = get_json(url, "/v1/models", headers, tls)
    except Refused as error:
        if error.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise TargetError(
                f"target `{shown}` refuses us with HTTP {error.status}: put its token into an environment variable and"
                " name that with --bearer-token-environment"
            ) from error
        raise NoModelList(
            f"target `{shown}` answered HTTP {error.status} to GET /v1/models: is it a model server?"
        ) from error
    except Unanswered as error:
        raise TargetError(f"target `{shown}` is unreachable ({reason(error)}): start it, or correct the URL") from error
    except ValueError as error:
        raise NoModelList(f"target `{shown}` answered GET /v1/models without JSON: is it a model server?") from error
    try:
        names = tuple(entry["id"] for entry in answer["data"])
        first = names[0]
    except (LookupError, TypeError) as error:
        raise NoModelList(f"target `{shown}` lists no model at /v1/models: load one, or use --model") from error
    if not isinstance(first, str) or not first.isprintable() or not 0 < len(first) <= MAXIMUM_MODEL_CHARACTERS:
        raise TargetError(
            f"target `{shown}` serves a model whose name is not 1 to {MAXIMUM_MODEL_CHARACTERS} printable characters"
            f" (`{_excerpt(str(first), 40)}`): serve it under a plain name"
        )
    return tuple(name for name in names if isinstance(name, str) and name.isprintable())


def is_sglang_info(answer: object) -> bool:
    """Whether an answer at INFO_PATHS is SGLang's own, or a router's that holds its workers' answers in lists."""
    if not isinstance(answer, dict):
        return False
    workers = (worker for value in answer.values() if isinstance(value, list) for worker in value)
    return any(isinstance(told, dict) and not SGLANG_FIELDS.isdisjoint(told) for told in (answer, *workers))


def reason(error: Exception) -> str:
    """An error's message on one line, else its name."""
    return _excerpt(" ".join(str(error).split())) or type(error).__name__


def _excerpt(text: str, *most_characters: int) -> str:
    # what judges answers is not loaded for asking a server's name.
    from pdwatch.correctness import excerpt

    return excerpt(text, *most_characters)
