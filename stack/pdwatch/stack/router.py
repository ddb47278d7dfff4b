"""The router of a deployment: the real sglang-router in PD mode.

Measured with release 0.3.2: started after its workers are healthy it is ready in 0.4 s; started before them it backs
off and is ready up to 2 s later than they are, with some 250 log lines. So it is started last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pdwatch.stack.health import PROBE_SECONDS, probe
from pdwatch.stack.ports import HOST
from pdwatch.stack.processes import ProcessPlan

ROUTER = "router"


@dataclass(frozen=True, slots=True)
class PrefillTarget:
    """A prefill worker as the router must know it."""

    url: str
    bootstrap_port: int


def router_plan(
    port: int,
    metrics_port: int,
    prefill: Sequence[PrefillTarget],
    decode: Sequence[str],
    startup_timeout_seconds: int = 60,
) -> ProcessPlan:
    """Plan the router in front of the given workers; it is ready when it counts all of them as healthy."""
    arguments = ["-m", "sglang_router.launch_router", "--pd-disaggregation"]
    for target in prefill:
        arguments += ["--prefill", target.url, str(target.bootstrap_port)]
    for url in decode:
        arguments += ["--decode", url]
    arguments += ["--policy", "round_robin", "--host", HOST, "--port", str(port)]
    arguments += ["--prometheus-host", HOST, "--prometheus-port", str(metrics_port)]
    # a retry would hide a fault from the judge and leave an orphaned request on the decode side
    arguments += ["--disable-retries", "--disable-circuit-breaker"]
    arguments += ["--worker-startup-timeout-secs", str(startup_timeout_seconds), "--worker-startup-check-interval", "1"]
    # at its default, info, it writes several lines per request
    arguments += ["--log-level", "warn", "--shutdown-grace-period-secs", "1"]
    url = f"http://{HOST}:{port}"
    workers = len(prefill) + len(decode)
    return ProcessPlan(
        name=ROUTER,
        role=ROUTER,
        arguments=tuple(arguments),
        url=url,
        is_ready=lambda: counts_as_healthy(url, workers),
    )


def counts_as_healthy(url: str, workers: int) -> bool:
    """Whether the router at ``url`` is ready and counts ``workers`` healthy workers."""
    answer = probe(f"{url}/readiness", PROBE_SECONDS)
    if answer is None or answer[0] != 200:
        return False
    try:
        readiness = json.loads(answer[1])
    except ValueError:
        return False
    return isinstance(readiness, dict) and readiness.get("healthy_workers") == workers
