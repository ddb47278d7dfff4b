"""Each server's /metrics, once a second, as it came, into `server.jsonl.zst`.

A scrape that fails is recorded as a failure: its series are absent at that second, not zero.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from pdwatch.gate.journal import JournalWriter

MAXIMUM_BODY_BYTES = 8 * 2**20
JOIN_SECONDS = 5.0
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
    """Context manager: samples from enter to exit, each server in a thread of its own, so that one that hangs costs
    the others nothing."""

    def __init__(self, path: Path, servers: Sequence[SampledServer], period_seconds: float = 1.0) -> None:
        self._path = path
        self._servers = servers
        self._period_seconds = period_seconds
        self._limit_seconds = max(period_seconds, 0.5)
        self._stop = threading.Event()
        # held to append and to close
        self._lock = threading.Lock()
        self._is_closed = False
        self._opened = ExitStack()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        journal = self._opened.enter_context(JournalWriter(self._path))
        client = httpx.Client(
            timeout=self._limit_seconds,
            headers=_HEADERS,
            # each thread holds one connection; none may wait for another's
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )
        self._opened.enter_context(client)
        for server in self._servers:
            thread = threading.Thread(
                target=self._run, args=(journal, client, server), name=f"sampler {server.name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        given_up = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, given_up - time.monotonic()))
        # a thread that waits even longer, for a name server say, finds the journal closed and ends
        with self._lock:
            self._is_closed = True
            self._opened.close()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self, journal: JournalWriter, client: httpx.Client, server: SampledServer) -> None:
        try:
            due = time.monotonic()
            while True:
                record = sample(client, server, self._limit_seconds)
                with self._lock:
                    if self._is_closed:
                        return
                    journal.append(record)
                # a scrape that took too long loses its turns instead of bunching them up
                due = max(due + self._period_seconds, time.monotonic())
                if self._stop.wait(due - time.monotonic()):
                    return
        except BaseException as failure:
            self._failure = failure


def sample(client: httpx.Client, server: SampledServer, limit_seconds: float = 1.0) -> dict[str, object]:
    """One record of the journal: when, which server, and the text or the failure.

    An answer whose next piece comes after `limit_seconds` is given up, so that a body that drips cannot hang.
    """
    started = time.monotonic()
    record: dict[str, object] = {
        "seconds": started,
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
                if time.monotonic() - started > limit_seconds:
                    return record | {"failure": f"over {limit_seconds:g} s"}
            if response.status_code != httpx.codes.OK:
                return record | {"failure": f"HTTP {response.status_code}"}
    except httpx.HTTPError as error:
        return record | {"failure": f"{type(error).__name__}: {error}"}
    return record | {"text": body.decode("utf-8", errors="replace")}
