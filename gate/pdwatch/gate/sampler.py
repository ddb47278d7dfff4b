"""Each server's /metrics, once a second, as it came, into `server.jsonl.zst`.

A scrape that fails is recorded as a failure: its series are absent at that second, not zero.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from pdwatch.gate.journal import JournalWriter

MAXIMUM_BODY_BYTES = 8 * 2**20
# the OpenMetrics form would rename series and add timestamps; ask for the plain one.
_HEADERS = {"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class SampledServer:
    """A server to sample. `role` is prefill, decode, router or reference."""

    name: str
    arm: str
    role: str
    metrics_url: str


class Sampler:
    """Context manager: samples in a thread of its own from enter to exit."""

    def __init__(self, path: Path, servers: Sequence[SampledServer], period_seconds: float = 1.0) -> None:
        self._path = path
        self._servers = servers
        self._period_seconds = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            timeout = httpx.Timeout(max(self._period_seconds, 0.5))
            with (
                JournalWriter(self._path) as journal,
                httpx.Client(timeout=timeout, headers=_HEADERS, trust_env=False) as client,
            ):
                due = time.monotonic()
                while True:
                    for server in self._servers:
                        journal.append(sample(client, server))
                    # a scrape that took too long loses its turns instead of bunching them up
                    due = max(due + self._period_seconds, time.monotonic())
                    if self._stop.wait(due - time.monotonic()):
                        return
        except BaseException as failure:
            self._failure = failure


def sample(client: httpx.Client, server: SampledServer) -> dict[str, object]:
    """One record of the journal: when, which server, and the text or the failure."""
    record: dict[str, object] = {
        "seconds": time.monotonic(),
        "unix_seconds": time.time(),
        "name": server.name,
        "arm": server.arm,
        "role": server.role,
    }
    try:
        with client.stream("GET", server.metrics_url) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAXIMUM_BODY_BYTES:
                    return record | {"failure": f"more than {MAXIMUM_BODY_BYTES} bytes"}
            if response.status_code != httpx.codes.OK:
                return record | {"failure": f"HTTP {response.status_code}"}
    except httpx.HTTPError as error:
        return record | {"failure": f"{type(error).__name__}: {error}"}
    return record | {"text": body.decode("utf-8", errors="replace")}
