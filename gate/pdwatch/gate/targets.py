"""What a run is pointed at: one or two arms, and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdwatch.gate.names import BASELINE, CANDIDATE
from pdwatch.gate.policy import TargetsPolicy
from pdwatch.gate.sampler import SampledServer

REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Server:
    """One server process; `url` is its base URL, `metrics_url` where its metrics are, None without any."""

    name: str
    arm: str
    role: str
    url: str
    metrics_url: str | None


@dataclass(frozen=True, slots=True)
class Targets:
    """Where requests go, by arm, and every server behind them."""

    urls: dict[str, str]
    reference: str | None
    servers: tuple[Server, ...]
    embedded: bool

    @property
    def has_baseline(self) -> bool:
        """True when the candidate is compared with a baseline."""
        return BASELINE in self.urls

    def sampled(self) -> tuple[SampledServer, ...]:
        """Servers whose metrics are sampled."""
        return tuple(
            SampledServer(server.name, server.arm, server.role, server.metrics_url)
            for server in self.servers
            if server.metrics_url is not None
        )


def arm_servers(
    arm: str, router: str | None, router_metrics: str | None, prefill: tuple[str, ...], decode: tuple[str, ...]
) -> Iterator[Server]:
    """The servers of one arm, router first."""
    if router is not None:
        yield Server(f"{arm} router", arm, "router", router, router_metrics)
    for role, urls in (("prefill", prefill), ("decode", decode)):
        for index, url in enumerate(urls):
            yield Server(f"{arm} {role}-{index}", arm, role, url, f"{url.rstrip('/')}/metrics")


def existing_targets(policy: TargetsPolicy) -> Targets:
    """Targets of a deployment that runs already; `policy.router` must be set."""
    assert policy.router is not None
    urls = {CANDIDATE: policy.router}
    servers = list(arm_servers(CANDIDATE, policy.router, policy.router_metrics, policy.prefill, policy.decode))
    if policy.baseline is not None:
        urls[BASELINE] = policy.baseline
        servers += arm_servers(BASELINE, policy.baseline, None, (), ())
    if policy.reference is not None:
        servers.append(Server(REFERENCE, REFERENCE, REFERENCE, policy.reference, None))
    return Targets(urls, policy.reference, tuple(servers), embedded=False)
