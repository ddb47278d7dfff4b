"""XID events, waited for in a thread of their own: NVML tells them once, as they happen, and never again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .nvml import Device, Nvml, NvmlError, XidEvent, XidSource

# how long a wait lasts at most, and so how long stopping may take
_WAIT_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 5.0
# a GPU in trouble reports a handful of numbers; whatever comes beyond is counted together
MOST_NUMBERS: Final = 64
OTHER: Final = "other"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class XidCount:
    """How often a GPU reported an XID since the exporter started, and when last (Unix seconds)."""

    uuid: str
    xid: str
    count: int
    last_unix_seconds: float


class XidWatcher:
    """Counts events from `start` to `stop`; the counts outlive both. `error` is why there are no events, if so."""

    def __init__(self, unix_time: Callable[[], float] = time.time, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._unix_time = unix_time
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], XidCount] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition(self._lock)
        self.error: NvmlError | None = None

    def start(self, nvml: Nvml, devices: Sequence[Device]) -> None:
        """Register and wait. Where a GPU or a user may have no events, the exporter goes on without them."""
        self.stop()
        self.error = None
        try:
            source = nvml.open_xids(devices)
        except NvmlError as error:
            _log.warning("no XID events: %s", error)
            self.error = error
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, args=(source,), name="xid events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop waiting; returns when NVML may be stopped."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def counts(self) -> list[XidCount]:
        """All events so far, by GPU and number."""
        with self._lock:
            return [self._counts[key] for key in sorted(self._counts)]

    def wait_for(self, events: int, seconds: float) -> bool:
        """Whether `events` in all have come after at most `seconds`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: sum(count.count for count in self._counts.values()) >= events, seconds
            )

    def _watch(self, source: XidSource) -> None:
        while not self._stop.is_set():
            try:
                event = source.wait(self._wait_seconds)
            except NvmlError as error:
                # the next collection meets the same failure and starts NVML again
                if self.error is None or self.error.code != error.code:
                    _log.warning("XID events: %s", error)
                self.error = error
                self._stop.wait(_RETRY_SECONDS)
                continue
            self.error = None
            if event is not None:
                self._count(event)
        try:
            source.close()
        except NvmlError as error:
            _log.debug("the event set was gone: %s", error)

    def _count(self, event: XidEvent) -> None:
        now = self._unix_time()
        with self._changed:
            key = (event.uuid, str(event.xid))
            if key not in self._counts and sum(uuid == event.uuid for uuid, _ in self._counts) >= MOST_NUMBERS:
                key = (event.uuid, OTHER)
            before = self._counts.get(key)
            if before is None:
                _log.warning("XID %d on GPU %s", event.xid, event.uuid or "unknown")
            self._counts[key] = XidCount(*key, 1 if before is None else before.count + 1, now)
            self._changed.notify_all()
