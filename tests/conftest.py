"""Fixtures for all portions: a clean environment, and loopback ports."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import settings

# the same examples everywhere, and no timed tests: how fast a machine is belongs to benchmarks.
settings.register_profile("pdwatch", derandomize=True, deadline=None)
settings.load_profile("pdwatch")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no setting of ours from the developer's shell reaches a test or what it starts."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("PDWATCH_"):
            monkeypatch.delenv(name)


@pytest.fixture
def free_port() -> int:
    """A loopback port on which nothing listened a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
