"""Questions to every server before any load is sent: is it there, which model, what does it say about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from pdwatch.gate.asking import (
    INFO_PATHS,
    Refused,
    Unanswered,
    authorization,
    get,
    get_json,
    reason,
    served_models,
)
from pdwatch.gate.errors import TargetError
from pdwatch.gate.redact import redact, redact_url
from pdwatch.gate.run_folder import WorkerRecord
from pdwatch.gate.targets import Server, Targets

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
    names = {arm: served_models(url, headers)[0] for arm, url in targets.urls.items()}
    # those of an embedded deployment are known to be up
    must_answer = () if targets.embedded else _WORKER_OPTIONS
    workers = tuple(_record(server, headers, server.role in must_answer) for server in targets.servers)
    available = targets.reference is not None and _is_healthy(targets.reference, headers)
    if model is None and len(set(names.values())) > 1:
        served = ", ".join(f"{arm} serves `{name}`" for arm, name in names.items())
        raise TargetError(f"the arms serve different models ({served}): name one with --model")
    return Preflight(model or next(iter(names.values())), workers, available)


def _record(server: Server, headers: Mapping[str, str], must_answer: bool) -> WorkerRecord:
    """What a server says about itself; one that answers anything at all is reachable."""
    info = None
    unreachable: Exception | None = None
    for path in INFO_PATHS:
        try:
            answer = get_json(server.url, path, headers)
        except Unanswered as error:
            unreachable = error
            # the other route of the same server would fail alike, after another wait
            break
        except (Refused, ValueError):
            continue
        if isinstance(answer, dict):
            info = redact(answer)
            break
    if must_answer and unreachable is not None:
        raise TargetError(
            f"worker `{redact_url(server.url)}` is unreachable ({reason(unreachable)}):"
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


def _is_healthy(url: str, headers: Mapping[str, str]) -> bool:
    try:
        return get(url, "/health", headers)[0] == HTTPStatus.OK
    except (Unanswered, ValueError):
        return False
