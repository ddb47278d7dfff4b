"""The embedded deployments of a run: the candidate with its reference, and the baseline beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pdwatch.gate.console import Talk
from pdwatch.gate.errors import TargetError
from pdwatch.gate.names import BASELINE, CANDIDATE
from pdwatch.gate.targets import REFERENCE, Server, Targets, arm_servers
from pdwatch.stack import (
    PLAIN_ENGINE,
    Deployment,
    DeploymentSpec,
    ProcessDied,
    ProcessState,
    ProcessStatus,
    check_settings,
)

if TYPE_CHECKING:
    from pdwatch.gate.session import GateRequest

READY_SECONDS = 90.0


def embedded_specs(request: GateRequest) -> tuple[DeploymentSpec, ...]:
    """The deployments to start. Raises SpecInvalid, before any process runs.

    The fault acts on the candidate only, and so do kernels, capture and overlap: the baseline stays plain.
    """
    candidate = DeploymentSpec.checked(
        name=CANDIDATE,
        fault=request.fault,
        fault_seed=request.fault_seed,
        weights=request.weights,
        ports=request.ports or {},
        engine=dict(request.engine),
    )
    check_settings(candidate)
    if not request.with_baseline:
        return (candidate,)
    plain = {**request.engine, **PLAIN_ENGINE} if request.engine else {}
    baseline = DeploymentSpec.checked(name=BASELINE, reference=False, weights=request.weights, engine=plain)
    return candidate, baseline


@contextmanager
def start_embedded(
    specs: Sequence[DeploymentSpec], directory: Path, talk: Talk
) -> Iterator[tuple[Targets, Callable[[], None]]]:
    """Start all deployments side by side; give the targets, and a check that raises when a process has died."""
    with ExitStack() as stack:
        talk.begin("starting the deployment")
        deployments = [
            stack.enter_context(Deployment.start(spec, directory / "deployments" / spec.name)) for spec in specs
        ]

        def progress(status: ProcessStatus) -> None:
            if status.state is ProcessState.READY:
                ready = sum(process.state is ProcessState.READY for each in deployments for process in each.processes)
                talk.advance(ready, f"{status.name} is ready")

        for deployment in deployments:
            with _named(deployment.spec.name):
                deployment.wait_ready(READY_SECONDS, progress)
        talk.end(f"{sum(len(deployment.processes) for deployment in deployments)} processes are ready")

        def check() -> None:
            for deployment in deployments:
                with _named(deployment.spec.name):
                    deployment.check()

        yield _targets(deployments), check


@contextmanager
def _named(arm: str) -> Iterator[None]:
    """Say whose process died: both arms have a `decode-0`."""
    try:
        yield
    except ProcessDied as error:
        raise TargetError(f"{arm} {error}") from error


def _targets(deployments: Sequence[Deployment]) -> Targets:
    urls: dict[str, str] = {}
    servers: list[Server] = []
    reference = None
    for deployment in deployments:
        arm, endpoints = deployment.spec.name, deployment.endpoints
        assert endpoints.router is not None
        urls[arm] = endpoints.router
        servers += arm_servers(arm, endpoints.router, endpoints.router_metrics, endpoints.prefill, endpoints.decode)
        reference = reference or endpoints.reference
    if reference is not None:
        servers.append(Server(REFERENCE, REFERENCE, REFERENCE, reference, f"{reference}/metrics"))
    return Targets(urls, reference, tuple(servers), embedded=True)
