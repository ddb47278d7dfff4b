"""An exporter: a source of metrics, its self-metrics, its health, one collection at a time.

A collection that fails serves the self-metrics and nothing else, so that old values cannot pass for new ones.
"""

from __future__ import annotations

import gzip
import logging
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Protocol

from prometheus_client import Metric
from prometheus_client.process_collector import ProcessCollector

from .definitions import Families, MetricDefinition
from .errors import CollectionFailed, CollectionTimedOut
from .exposition import Exposition, encode
from .field_errors import FieldErrors
from .flight import SharedFlight

# at this level the time is that of reading; better levels save little on text that repeats itself
_GZIP_LEVEL: Final = 1
# a health check trusts the last collection for this long and makes its own after
_HEALTH_TRUSTS_SECONDS: Final = 15.0
_OUTCOMES: Final = ("success", "failed", "timeout")

_log = logging.getLogger(__name__)

BUILD = MetricDefinition(
    "pdwatch_exporter_build_info", "info", "Version of pdwatch and of Python.", ("exporter", "version", "python")
)
UP = MetricDefinition(
    "pdwatch_exporter_up",
    "gauge",
    "1 when this collection succeeded, 0 when it failed and nothing but self-metrics is here.",
)
COLLECTION_SECONDS = MetricDefinition(
    "pdwatch_exporter_collection_seconds", "gauge", "Wall time of this collection, or of the wait that was given up."
)
COLLECTIONS = MetricDefinition(
    "pdwatch_exporter_collections_total",
    "counter",
    "Collections by outcome; one may answer many scrapes.",
    ("outcome",),
)
SCRAPES = MetricDefinition(
    "pdwatch_exporter_scrapes_total", "counter", "Scrapes answered before this collection ended."
)
LAST_SUCCESS = MetricDefinition(
    "pdwatch_exporter_last_success_timestamp_seconds",
    "gauge",
    "Unix time of the last collection that succeeded; absent before the first.",
)
FIELD_ERRORS = MetricDefinition(
    "pdwatch_exporter_field_errors_total",
    "counter",
    "Collections that lacked a field, by field and reason; such a field is absent, never 0.",
    ("field", "reason"),
)
SELF_DEFINITIONS: Final = (BUILD, UP, COLLECTION_SECONDS, COLLECTIONS, SCRAPES, LAST_SUCCESS, FIELD_ERRORS)


class MetricSource(Protocol):
    """What an exporter exports."""

    @property
    def field_errors(self) -> FieldErrors:
        """Where the source notes the fields it lacks."""

    def collect(self) -> Sequence[Metric]:
        """Read everything now and build new families. Raises CollectionFailed; called by one thread at a time."""

    def close(self) -> None:
        """Let go of everything; called once, when no collection runs."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the last collection succeeded, and if not, why."""

    is_good: bool
    reason: str


class Snapshot:
    """The families of one collection; those who share it share each encoding too."""

    def __init__(self, families: Sequence[Metric], failure: str | None) -> None:
        self.failure = failure
        self._families = families
        self._lock = threading.Lock()
        self._encoded: dict[tuple[str, bool], Exposition] = {}

    def exposition(self, accept: str, compressed: bool) -> Exposition:
        """The families in the format `accept` asks for, gzipped if `compressed`."""
        with self._lock:
            found = self._encoded.get((accept, compressed))
            if found is None:
                found = encode(self._families, accept)
                if compressed:
                    found = Exposition(gzip.compress(found.body, _GZIP_LEVEL, mtime=0), found.content_type)
                self._encoded[accept, compressed] = found
            return found


class Exporter:
    """A source behind a single flight. Closing it waits for the collection under way, but not longer than its limit."""

    def __init__(
        self,
        name: str,
        source: MetricSource,
        *,
        limit_seconds: float = 5.0,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._source = source
        self._limit_seconds = limit_seconds
        self._unix_time = unix_time
        self._flight = SharedFlight(self._collect, limit_seconds)
        self._process = ProcessCollector(registry=None)
        self._lock = threading.Lock()
        self._outcomes = dict.fromkeys(_OUTCOMES, 0)
        self._scrapes = 0
        self._last_success: float | None = None
        self._last: tuple[float, Health] | None = None
        self._build = (name, _version(), platform.python_version())

    def scrape(self, patience_seconds: float | None = None) -> Snapshot:
        """Collect, or share the collection under way. Never raises for a failed one: its snapshot says so."""
        try:
            snapshot = self._flight.join(patience_seconds)
        except CollectionTimedOut as failure:
            self._note("timeout", str(failure))
            snapshot = Snapshot(self._self_families(failure.seconds, is_up=False), str(failure))
        with self._lock:
            self._scrapes += 1
        return snapshot

    def health(self) -> Health:
        """Whether collections succeed: as the last one did if it is recent, else as a new one does."""
        with self._lock:
            last = self._last
        if last is None or time.monotonic() - last[0] > _HEALTH_TRUSTS_SECONDS:
            failure = self.scrape().failure
            return Health(failure is None, failure or "")
        return last[1]

    def close(self) -> None:
        """Wait for the collection under way and close the source."""
        if self._flight.wait_until_idle(self._limit_seconds):
            self._source.close()
        else:
            # closing under a thread that hangs in the driver would crash instead of ending
            _log.warning("%s: a collection still hangs; the source stays open", self.name)

    def _collect(self) -> Snapshot:
        started = time.monotonic()
        try:
            families: Sequence[Metric] = self._source.collect()
            failure = None
        except CollectionFailed as error:
            families, failure = (), str(error)
        except Exception as error:
            # a fault of ours must not look like a healthy machine without GPUs
            _log.exception("%s: the collection broke", self.name)
            families, failure = (), f"internal fault ({type(error).__name__}: {error}), please report it"
        self._source.field_errors.settle()
        self._note("success" if failure is None else "failed", failure)
        own = self._self_families(time.monotonic() - started, is_up=failure is None)
        return Snapshot([*families, *own], failure)

    def _note(self, outcome: str, failure: str | None) -> None:
        with self._lock:
            was_good = self._last is None or self._last[1].is_good
            self._outcomes[outcome] += 1
            self._last = (time.monotonic(), Health(failure is None, failure or ""))
            if failure is None:
                self._last_success = self._unix_time()
        if failure is not None and was_good:
            _log.warning("%s: %s", self.name, failure)
        elif failure is None and not was_good:
            _log.info("%s: collections succeed again", self.name)

    def _self_families(self, seconds: float, *, is_up: bool) -> list[Metric]:
        families = Families(SELF_DEFINITIONS)
        families.add(BUILD, 1, self._build)
        families.add(UP, float(is_up))
        families.add(COLLECTION_SECONDS, seconds)
        with self._lock:
            for outcome, count in self._outcomes.items():
                families.add(COLLECTIONS, count, (outcome,))
            families.add(SCRAPES, self._scrapes)
            if self._last_success is not None:
                families.add(LAST_SUCCESS, self._last_success)
        for key, count in self._source.field_errors.counts().items():
            families.add(FIELD_ERRORS, count, key)
        return [*families.built(), *self._process.collect()]


def _version() -> str:
    try:
        return metadata.version("pdwatch")
    except metadata.PackageNotFoundError:
        # run from a checkout that is not installed
        return "unknown"
