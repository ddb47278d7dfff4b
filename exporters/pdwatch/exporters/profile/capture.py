"""A trace taken from a running SGLang: asked for with /start_profile, waited for where the server writes it."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import httpx

from ..errors import CaptureFailed, TraceInvalid
from .load import LoadGuard
from .profile import Profile, profile_trace
from .rules import KernelRules

API_KEY_VARIABLE: Final = "PDWATCH_SGLANG_API_KEY"
_REQUEST_SECONDS: Final = 10.0
# the profiler starts within the request, and CUPTI takes its time the first time
_START_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.5
_LARGEST_ANSWER_BYTES: Final = 32 << 20
_TARGET: Final = re.compile(r"^(?P<name>[\w.:-]{1,64})=(?P<url>https?://[^\s/?#@]+)/?$", re.ASCII)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A server to profile: its name as a label, and where it answers."""

    name: str
    url: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """`name=http://host:port`. Raises CaptureFailed."""
        found = _TARGET.match(text)
        if found is None:
            raise CaptureFailed(f"`{text}` is no target: give name=http://host:port")
        return cls(found["name"], found["url"])


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """How a profile is taken. `directory` is one that the server writes and we read."""

    directory: Path
    steps: int = 30
    timeout_seconds: float = 180.0
    guard: LoadGuard = field(default_factory=LoadGuard)
    graphs_per_step: int = 1
    keep_traces: bool = False


def profile_apart(
    path: Path, rules: KernelRules, target: str, unix_seconds: float, graphs_per_step: int
) -> list[Profile]:
    """`profile_trace` in a process of its own, at low priority: a large trace takes seconds and a hundred megabytes,
    which an exporter that serves has not to give. Raises TraceInvalid, and CaptureFailed when the process dies."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=os.nice, initargs=(10,)) as pool:
        found = pool.submit(
            profile_trace, path, rules, target=target, unix_seconds=unix_seconds, graphs_per_step=graphs_per_step
        )
        try:
            return found.result()
        except BrokenProcessPool as error:
            raise CaptureFailed(f"{target}: profiling {path.name} died, most likely for want of memory") from error


class Capturer:
    """Takes profiles, one at a time."""

    def __init__(
        self,
        settings: CaptureSettings,
        rules: KernelRules,
        *,
        client: httpx.Client | None = None,
        profiler: Callable[[Path, KernelRules, str, float, int], list[Profile]] = profile_apart,
        unix_time: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._settings = settings
        self._rules = rules
        key = os.environ.get(API_KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = client or httpx.Client(timeout=_REQUEST_SECONDS, headers=headers, trust_env=False)
        self._profiler = profiler
        self._unix_time = unix_time
        self._monotonic = monotonic
        self._sleep = sleep

    def capture(self, target: Target) -> list[Profile]:
        """Profiles of the target's ranks. Raises CaptureRefused for its load, CaptureFailed, or TraceInvalid."""
        self._settings.guard.check(target.name, self._ask("GET", f"{target.url}/metrics", target))
        try:
            self._settings.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CaptureFailed(f"{self._settings.directory} cannot be made: {error.strerror}") from error
        taken_at = self._unix_time()
        identity = f"pdwatch-{target.name.replace(':', '-')}-{int(taken_at * 1e3)}"
        request = {
            "output_dir": str(self._settings.directory.resolve()),
            "num_steps": self._settings.steps,
            "activities": ["CPU", "GPU"],
            "profile_id": identity,
            # stacks are on if nothing is said, and make a trace ten times as long
            "with_stack": False,
            "record_shapes": False,
        }
        self._ask("POST", f"{target.url}/start_profile", target, request)
        traces: list[Path] = []
        try:
            traces = self._wait(target, identity)
            return [
                profile
                for trace in traces
                for profile in self._profiler(trace, self._rules, target.name, taken_at, self._settings.graphs_per_step)
            ]
        finally:
            if not traces:
                self._stop(target)
            if not self._settings.keep_traces:
                for trace in self._files(identity):
                    trace.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _wait(self, target: Target, identity: str) -> list[Path]:
        """The traces once they have stopped growing."""
        begun = self._monotonic()
        before: dict[Path, int] = {}
        while self._monotonic() - begun < self._settings.timeout_seconds:
            self._sleep(_POLL_SECONDS)
            now = {path: path.stat().st_size for path in self._files(identity)}
            if now and now == before and all(now.values()):
                return sorted(now)
            before = now
        raise CaptureFailed(
            f"{target.name} wrote no trace into {self._settings.directory} within "
            f"{self._settings.timeout_seconds:g} s: does it run on this machine, and did it make "
            f"{self._settings.steps} steps meanwhile?"
        )

    def _files(self, identity: str) -> list[Path]:
        # only what begins with our identity, whatever else lies there
        return [path for path in self._settings.directory.glob(f"{identity}-TP-*.trace.json.gz") if path.is_file()]

    def _stop(self, target: Target) -> None:
        try:
            self._ask("POST", f"{target.url}/stop_profile", target)
        except CaptureFailed as error:
            _log.debug("%s", error)

    def _ask(self, method: str, url: str, target: Target, body: object = None) -> str:
        timeout = _START_SECONDS if method == "POST" else _REQUEST_SECONDS
        try:
            with self._client.stream(method, url, json=body, timeout=timeout) as response:
                data = bytearray()
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > _LARGEST_ANSWER_BYTES:
                        raise CaptureFailed(
                            f"{target.name}: {url} answers with more than {_LARGEST_ANSWER_BYTES} bytes"
                        )
                if response.status_code != httpx.codes.OK:
                    raise CaptureFailed(f"{target.name}: {url} answered HTTP {response.status_code}")
        except httpx.HTTPError as error:
            raise CaptureFailed(f"{target.name}: {url} cannot be asked: {error or type(error).__name__}") from error
        return data.decode(errors="replace")


def outcome_of(error: Exception) -> str:
    """An error of `Capturer.capture` as a label value."""
    outcome = getattr(error, "outcome", None)
    if isinstance(outcome, str):
        return outcome
    return "trace_invalid" if isinstance(error, TraceInvalid) else "failed"
