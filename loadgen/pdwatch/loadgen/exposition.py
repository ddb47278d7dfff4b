"""The client's own figures for Prometheus, as `pdwatch_loadgen_*`.

Histograms are of complete requests, warm-up and cool-down included, by arm, level and load, which names the rate of an
open loop; requests that were to be refused and were have the outcome `expected_error`. A histogram's help is the
formula of METRICS. An SLO's limit is an edge of its histogram, so that the share within it is exact. With OpenMetrics
each bucket carries its last request's id as exemplar, by which the transcript is found.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from .definitions import METRICS
from .errors import PlanError
from .plan import Phase
from .row import RequestRow
from .slo import Slo
from .transcript import Outcome

PREFIX: Final = "pdwatch_loadgen"

_TOKEN_EDGES: Final = (
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    5.0,
)
_FIRST_EDGES: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_WHOLE_EDGES: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# what is shown, the usual edges, and the limit of the SLO that adds one.
_HISTOGRAMS: Final = {
    "time_to_first_token_seconds": (_FIRST_EDGES, "ttft"),
    "time_to_first_visible_token_seconds": (_FIRST_EDGES, None),
    "time_per_output_token_seconds": (_TOKEN_EDGES, "tpot"),
    "inter_token_seconds": (_TOKEN_EDGES, None),
    "longest_inter_chunk_seconds": (_FIRST_EDGES, "stall"),
    "end_to_end_seconds": (_WHOLE_EDGES, "e2e"),
    "schedule_lag_seconds": (_FIRST_EDGES, None),
    "scheduled_time_to_first_token_seconds": (_FIRST_EDGES, "ttft"),
    "scheduled_end_to_end_seconds": (_WHOLE_EDGES, "e2e"),
}

_EXPECTED_ERROR: Final = "expected_error"

_Place = tuple[str, str, str]
_LABELS: Final = ("arm", "level", "load")


class Exposition(Collector):
    """Takes in rows from one thread and shows them to another."""

    def __init__(self, slo: Slo | None = None) -> None:
        self._slo = slo
        self._lock = Lock()
        self._requests: Counter[tuple[str, str, str, str]] = Counter()
        self._sums: dict[str, Counter[_Place]] = {name: Counter() for name in ("good", "output", "prompt")}
        self._histograms: dict[str, dict[_Place, _Histogram]] = {name: {} for name in _HISTOGRAMS}
        self._gauges: dict[str, float] = {}
        self._load = ""

    def begin(self, phase: Phase) -> None:
        """The requests to come are of this phase."""
        with self._lock:
            self._load = phase.load.title(phase.level)

    def observe(self, row: RequestRow) -> None:
        """Take in a request that has ended."""
        outcome = _EXPECTED_ERROR if row.is_expected_error else row.outcome.value
        with self._lock:
            place = row.arm, str(row.level), self._load
            self._requests[(*place, outcome)] += 1
            if row.outcome is not Outcome.COMPLETE:
                return
            self._sums["output"][place] += row.output_tokens or 0
            self._sums["prompt"][place] += row.prompt_tokens or 0
            if self._slo is not None:
                self._sums["good"][place] += self._slo.is_met(row)
            for name, histograms in self._histograms.items():
                value = getattr(row, name)
                if value is not None:
                    if place not in histograms:
                        histograms[place] = _Histogram(self._edges(name))
                    histograms[place].add(value if isinstance(value, array) else (value,), row)

    def set_gauges(self, **values: float) -> None:
        """Set gauges by name: `in_flight` requests, `users`, `loop_lag_seconds`."""
        with self._lock:
            self._gauges |= values

    def collect(self) -> Iterator[Metric]:
        """Metric families of what has been taken in."""
        with self._lock:
            yield from list(self._families())

    def _families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(f"{PREFIX}_requests", "Requests that have ended.", labels=(*_LABELS, "outcome"))
        for labels, count in sorted(self._requests.items()):
            requests.add_metric(labels, count)
        yield requests
        totals = {
            "output": ("output_tokens", "Output tokens of complete requests, by usage."),
            "prompt": ("prompt_tokens", "Prompt tokens of complete requests, by usage."),
        }
        if self._slo is not None:
            totals["good"] = ("good_requests", f"Complete requests within the SLO: {self._slo}.")
        for key, (name, text) in totals.items():
            family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=_LABELS)
            for place, total in sorted(self._sums[key].items()):
                family.add_metric(place, total)
            yield family
        for metric in METRICS:
            histograms = self._histograms.get(metric.name)
            if histograms:
                text = f"{metric.title}: {metric.formula}."
                shown = HistogramMetricFamily(f"{PREFIX}_{metric.name}", text, labels=_LABELS)
                for place, histogram in sorted(histograms.items()):
                    shown.add_metric(place, histogram.buckets(), histogram.total)
                yield shown
        for name, value in self._gauges.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", f"{name.replace('_', ' ')} of the load generator.", value)

    def _edges(self, name: str) -> list[float]:
        edges, limit_name = _HISTOGRAMS[name]
        limit = dict(self._slo.limits()).get(limit_name) if self._slo is not None and limit_name else None
        return sorted({*edges, *(() if limit is None else (limit,))})


class _Histogram:
    def __init__(self, edges: list[float]) -> None:
        self.total = 0.0
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._exemplars: list[Exemplar | None] = [None] * (len(edges) + 1)

    def add(self, values: Iterable[float], row: RequestRow) -> None:
        edges, counts = self._edges, self._counts
        for value in values:
            bucket = bisect_left(edges, value)
            counts[bucket] += 1
            self.total += value
        # one a request, of its last value: enough to find an example of each bucket.
        ended_unix_seconds = row.sent_unix_seconds + row.ended_seconds - row.sent_seconds
        self._exemplars[bucket] = Exemplar({"request_id": row.request_id}, value, ended_unix_seconds)

    def buckets(self) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        shown: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        below = 0.0
        names = [*map(repr, self._edges), "+Inf"]
        for name, count, exemplar in zip(names, self._counts, self._exemplars, strict=True):
            below += count
            shown.append((name, below) if exemplar is None else (name, below, exemplar))
        return shown


def serve_exposition(exposition: Exposition, port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve `/metrics` from a thread; the returned function ends that. Raises PlanError when the port is taken."""
    registry = CollectorRegistry()
    registry.register(exposition)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise PlanError(f"metrics port {port} cannot be listened on ({error.strerror}); choose another") from None

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
