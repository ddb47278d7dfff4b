"""`pdwatch load-worker` becomes the driver that joins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pdwatch.gate.commands.load_worker import load_worker
from pdwatch.gate.errors import OptionError


@pytest.mark.parametrize(
    ("master", "host", "port"),
    [("10.0.0.7:99", "10.0.0.7", "99"), ("leader", "leader", "5557"), ("fe80::1", "fe80::1", "5557")],
)
def test_it_becomes_the_driver(
    master: str, host: str, port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, arguments: ran.append([program, *arguments]))
    load_worker(master, "DOOR", tmp_path / "out")
    options = ["--master-host", host, "--master-port", port, "--out", str(tmp_path / "out")]
    program = [sys.executable, sys.executable, "-P", "-m", "pdwatch.loadgen.scale.agent"]
    assert ran == [[*program, *options, "--bearer-token-environment", "DOOR"]]
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("master", [":5557", "leader:port", ""])
def test_no_address(master: str) -> None:
    with pytest.raises(OptionError, match="is no address: write it as HOST or HOST:PORT"):
        load_worker(master)
