"""Questions to every server before any load is sent: is it there, which model, what does it say about itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from pdwatch.correctness import excerpt
from pdwatch.gate.errors import NoModelList, TargetError
from pdwatch.gate.redact import redact, redact_url
from pdwatch.gate.run_folder import WorkerRecord
from pdwatch.gate.targets import Server, Targets

TIMEOUT_SECONDS = 5.0
MAXIMUM_MODEL_CHARACTERS = 256
MAXIMUM_BODY_BYTES = 2 * 2**20
# SGLang renamed this route; older servers have only the second
INFO_PATHS = ("/server_info", "/get_server_info")
_WORKER_OPTIONS = {"prefill": "--prefill-url", "decode": "--decode-url"}


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was learned: the model's name, each server's record, whether the reference answers."""

    model: str
    workers: tuple[WorkerRecord, ...]
    reference_available: bool


def preflight(targets: Targets, model: str | None, bearer_token_environment: str | None) -> Preflight:
    """Ask every server; raises TargetError when an arm's URL does not lead to a model server, or when a worker that
    was named cannot be reached.

    A reference that does not answer is no error: the verdict will be INCONCLUSIVE and say so.
    """
    headers = authorization(bearer_token_environment)
    with httpx.Client(timeout=TIMEOUT_SECONDS, headers=headers, trust_env=False) as client:
        names = {arm: served_models(client, url)[0] for arm, url in targets.urls.items()}
        # those of an embedded deployment are known to be up
        must_answer = () if targets.embedded else _WORKER_OPTIONS
        workers = tuple(_record(client, server, server.role in must_answer) for server in targets.servers)
        available = targets.reference is not None and _is_healthy(client, targets.reference)
    if model is None and len(set(names.values())) > 1:
        served = ", ".join(f"{arm} serves `{name}`" for arm, name in names.items())
        raise TargetError(f"the arms serve different models ({served}): name one with --model")
    return Preflight(model or next(iter(names.values())), workers, available)


def authorization(environment: str | None) -> dict[str, str]:
    """The header with the token that an environment variable holds. Raises TargetError when it holds none."""
    if environment is None:
        return {}
    token = os.environ.get(environment)
    if not token:
        raise TargetError(f"environment variable `{environment}` is empty: put the bearer token in it")
    return {"Authorization": f"Bearer {token}"}


def served_models(client: httpx.Client, url: str) -> tuple[str, ...]:
    """Names of the models that a target serves, one at least.

    Raises NoModelList when it answers something else, and TargetError when it does not answer or refuses us.
    """
    shown = redact_url(url)
    base = url.rstrip("/").removesuffix("/v1")
    try:
        answer = get_json(client, f"{base}/v1/models")
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise TargetError(
                f"target `{shown}` refuses us with HTTP {status}: put its token into an environment variable and name"
                " that with --bearer-token-environment"
            ) from error
        raise NoModelList(
            f"target `{shown}` answered HTTP {status} to GET /v1/models: is it a model server?"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise TargetError(
            f"target `{shown}` is unreachable ({_reason(error)}): start it, or correct the URL"
        ) from error
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
            f" (`{excerpt(str(first), 40)}`): serve it under a plain name"
        )
    return tuple(name for name in names if isinstance(name, str) and name.isprintable())


def _record(client: httpx.Client, server: Server, must_answer: bool) -> WorkerRecord:
    """What a server says about itself; one that answers anything at all is reachable."""
    info = None
    unreachable: Exception | None = None
    for path in INFO_PATHS:
        try:
            answer = get_json(client, server.url.rstrip("/") + path)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            unreachable = error
            # the other route of the same server would fail alike, after another wait
            break
        except (httpx.HTTPError, ValueError):
            continue
        if isinstance(answer, dict):
            info = redact(answer)
            break
    if must_answer and unreachable is not None:
        raise TargetError(
            f"worker `{redact_url(server.url)}` is unreachable ({_reason(unreachable)}):"
            f" start it, or correct {_WORKER_OPTIONS[server.role]}"
        ) from unreachable
    return WorkerRecord(
        name=server.name,
        arm=server.arm,
        role=server.role,
        url=redact_url(server.url),
        metrics_url=None if server.metrics_url is None else redact_url(server.metrics_url),
        server_info=info,
    )


def _is_healthy(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url.rstrip('/')}/health").status_code == httpx.codes.OK
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def get_json(client: httpx.Client, url: str) -> Any:
    """What a GET answers; raises httpx's errors, and ValueError for what is too long or no JSON."""
    with client.stream("GET", url) as response:
        response.raise_for_status()
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAXIMUM_BODY_BYTES:
                raise ValueError(f"more than {MAXIMUM_BODY_BYTES} bytes")
    return orjson.loads(bytes(body))


def _reason(error: Exception) -> str:
    text = excerpt(" ".join(str(error).split()))
    return text or type(error).__name__
