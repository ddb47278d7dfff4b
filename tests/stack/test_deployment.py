from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdwatch.stack import (
    Deployment,
    DeploymentSpec,
    NotReady,
    PortInUse,
    ProcessDied,
    ProcessState,
    ProcessStatus,
    SpecInvalid,
    StackError,
    is_healthy,
)
from pdwatch.stack.workers import engine_settings

MakeSpec = Callable[..., DeploymentSpec]
Behave = Callable[[dict[str, dict[str, Any]]], None]
AssertGone = Callable[[list[int]], None]


def pids_of(deployment: Deployment) -> list[int]:
    return [status.pid for status in deployment.processes if status.pid is not None]


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Look until it is so; the deployment's own thread makes it so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_deployment_comes_up_and_leaves_nothing(make_spec: MakeSpec, tmp_path: Path, assert_gone: AssertGone) -> None:
    seen: list[ProcessStatus] = []
    with Deployment.start(make_spec(prefill=2), tmp_path / "run") as deployment:
        deployment.wait_ready(30, seen.append)
        pids = pids_of(deployment)
        endpoints = deployment.endpoints
        assert [status.name for status in deployment.processes] == ["prefill-0", "prefill-1", "decode-0", "reference"]
        assert endpoints.reference is not None
        assert all(map(is_healthy, (*endpoints.prefill, *endpoints.decode, endpoints.reference)))
        assert (endpoints.router, endpoints.router_metrics) == (None, None)
    assert len(pids) == 4
    assert_gone(pids)
    assert {status.state for status in deployment.processes} == {ProcessState.STOPPED}
    assert {status.name for status in seen if status.state is ProcessState.READY} == {
        "prefill-0",
        "prefill-1",
        "decode-0",
        "reference",
    }


def test_the_real_router_finds_its_workers(make_spec: MakeSpec, tmp_path: Path, free_port: int) -> None:
    spec = make_spec(router=True, reference=False, ports={"router": free_port})
    with Deployment.start(spec, tmp_path / "run") as deployment:
        deployment.wait_ready(30)
        assert deployment.endpoints.router == f"http://127.0.0.1:{free_port}"
        assert is_healthy(deployment.endpoints.router)
        pids = pids_of(deployment)
    assert len(pids) == 3


def test_worker_configuration_files(make_spec: MakeSpec, tmp_path: Path, free_port: int) -> None:
    spec = make_spec(engine={"num_pages": 256}, ports={"prefill-0.bootstrap": free_port})
    with Deployment.start(spec, tmp_path / "run") as deployment:
        configs = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "run" / "config").iterdir()}
        endpoints = deployment.endpoints
    assert configs.keys() == {"prefill-0", "decode-0", "reference"}
    assert configs["prefill-0"]["bootstrap_port"] == free_port
    assert "bootstrap_port" not in configs["decode-0"]
    assert endpoints.decode == (f"http://127.0.0.1:{configs['decode-0']['port']}",)
    assert {config["engine"]["num_pages"] for config in configs.values()} == {256}
    assert [configs[name]["eager"] for name in ("prefill-0", "decode-0", "reference")] == [False, False, True]


def test_the_reference_is_never_batched_nor_faulty() -> None:
    spec = DeploymentSpec(fault="slow_step", fault_seed=3, engine={"max_running_requests": 8, "prefix_cache": True})
    decode, reference = engine_settings(spec, "decode"), engine_settings(spec, "unified")
    assert (decode["fault"], decode["fault_seed"], decode["max_running_requests"]) == ("slow_step", 3, 8)
    assert "fault" not in reference
    assert (reference["max_running_requests"], reference["prefix_cache"]) == (1, False)


def test_a_death_before_readiness_is_named(
    make_spec: MakeSpec, behave: Behave, tmp_path: Path, assert_gone: AssertGone
) -> None:
    behave(
        {"decode-0": {"exit_code": 5, "line": "weights file is corrupt: use another"}, "prefill-0": {"silent": True}}
    )
    with Deployment.start(make_spec(), tmp_path / "run") as deployment:
        with pytest.raises(
            ProcessDied, match=r"^decode-0 exited with code 5: weights file is corrupt: use another \(log"
        ):
            deployment.wait_ready(30)
        assert_gone(pids_of(deployment))


def test_a_crash_later_is_named_and_stops_the_rest(
    make_spec: MakeSpec, tmp_path: Path, assert_gone: AssertGone
) -> None:
    with Deployment.start(make_spec(), tmp_path / "run") as deployment:
        deployment.wait_ready(30)
        deployment.check()
        victim = next(status for status in deployment.processes if status.name == "prefill-0")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGSEGV)
        wait_until(lambda: all(process.exit_code is not None for process in deployment.processes))
        with pytest.raises(ProcessDied) as caught:
            deployment.check()
        died = caught.value
        assert (died.name, died.exit_code) == ("prefill-0", -signal.SIGSEGV)
        assert_gone(pids_of(deployment))
    states = {status.name: status.state for status in deployment.processes}
    assert states == {
        "prefill-0": ProcessState.DIED,
        "decode-0": ProcessState.STOPPED,
        "reference": ProcessState.STOPPED,
    }


def test_not_ready_in_time_names_who_is_late(make_spec: MakeSpec, behave: Behave, tmp_path: Path) -> None:
    behave({"reference": {"silent": True}})
    with Deployment.start(make_spec(), tmp_path / "run") as deployment:
        wait_until(lambda: [process.state for process in deployment.processes].count(ProcessState.READY) == 2)
        with pytest.raises(NotReady) as caught:
            deployment.wait_ready(0.2)
    assert str(caught.value) == f"not ready after 0.2 s: reference; their logs are in {tmp_path / 'run' / 'logs'}"


def test_a_stopped_deployment_says_so(make_spec: MakeSpec, tmp_path: Path) -> None:
    with Deployment.start(make_spec(), tmp_path / "run") as deployment:
        deployment.stop()
        deployment.stop()
        with pytest.raises(StackError, match="has been stopped"):
            deployment.wait_ready(30)


def test_no_orphan_when_the_parent_is_killed(make_spec: MakeSpec, tmp_path: Path, assert_gone: AssertGone) -> None:
    parent_code = """
        import signal, sys
        from pathlib import Path
        from pdwatch.stack import Deployment, DeploymentSpec
        deployment = Deployment.start(DeploymentSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
        deployment.wait_ready(30)
        print(*[status.pid for status in deployment.processes], flush=True)
        signal.pause()
    """
    spec = make_spec(router=True)
    command = [sys.executable, "-c", textwrap.dedent(parent_code), spec.model_dump_json(), str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert select.select([parent.stdout], [], [], 60)[0], "the deployment did not come up"
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 4
    assert_gone(pids)


def test_a_port_in_use_starts_nothing(make_spec: MakeSpec, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} for decode-0 cannot be bound: address already in use"):
            Deployment.start(make_spec(ports={"decode-0": port}), tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"prefill": 0}, "prefill is 0", id="no_prefill_worker"),
        pytest.param({"name": "Not A Name"}, "name is 'Not A Name'", id="name"),
        pytest.param({"prefil": 1}, "no key is named prefil: use one of name, prefill, ", id="unknown_key"),
        pytest.param(
            {"ports": {"decode-1": 4000}}, "no port is named decode-1: use one of prefill-0, ", id="port_name"
        ),
        pytest.param({"ports": {"router": 70000}}, "ports.router is 70000", id="port_range"),
        pytest.param({"ports": {"router": 4000, "decode-0": 4000}}, "one port is asked for twice", id="port_twice"),
    ],
)
def test_a_spec_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        DeploymentSpec.checked(**fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"weights": Path("/nowhere.safetensors")}, "/nowhere.safetensors does not exist", id="weights"),
        pytest.param(
            {"engine": {"pages": 3}}, "engine settings: no key is named pages: use one of role, ", id="engine_key"
        ),
        pytest.param({"engine": {"fault": "slow_step"}}, "fault is 'slow_step': .*--fault NAME", id="engine_fault"),
        pytest.param({"engine": {"fault_seed": 3}}, "fault_seed is 3: .*--fault-seed NUMBER", id="engine_fault_seed"),
        pytest.param({"engine": {"role": "decode"}}, "role is 'decode': .*leave it out", id="engine_role"),
        pytest.param({"engine": {"device": "gpu"}}, "engine settings: device is 'gpu'", id="engine_device"),
        pytest.param({"fault": "gremlin"}, "no fault is named gremlin: use one of ", id="fault"),
    ],
)
def test_what_only_a_worker_would_notice_is_noticed_first(
    make_spec: MakeSpec, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecInvalid, match=message):
        Deployment.start(make_spec(**fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()
