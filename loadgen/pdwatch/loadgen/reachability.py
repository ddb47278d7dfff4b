"""Whether the targets answer, found out before the load begins."""

from __future__ import annotations

from .client import StreamClient
from .connection import Connector
from .errors import TargetUnreachable
from .framing import parse_response
from .meter import Meter
from .plan import Plan
from .request import get_request
from .target import Target


def check_targets(plan: Plan, connectors: dict[str, Connector], meter: Meter, bearer_token: str | None) -> None:
    """Ask each target that a phase uses for its models. Raises TargetUnreachable with the remedy.

    Any HTTP answer will do, but for one that says the token is wrong.
    """
    for arm in dict.fromkeys(phase.arm for phase in plan.phases):
        target = Target.parse(plan.targets[arm])
        client = StreamClient(
            connectors[target.url],
            request_timeout_seconds=plan.connect_timeout_seconds,
            most_response_bytes=plan.most_response_bytes,
            meter=meter,
        )
        exchange = client.exchange(get_request(target, "/v1/models", bearer_token))
        client.close()
        status = parse_response(exchange).status
        if status is None:
            reason = exchange.detail or exchange.end.value
            raise TargetUnreachable(
                f"{arm} target {target.url} does not answer ({reason}); start the server there, or correct the URL"
            )
        if status in (401, 403):
            raise TargetUnreachable(
                f"{arm} target {target.url} refuses us with HTTP {status}; name the environment variable that "
                "holds its token in bearer_token_environment"
            )
