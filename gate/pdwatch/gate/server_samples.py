"""Server samples as columns, and the questions that verdict and report ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pdwatch.gate.exposition import Series, SeriesTable
from pdwatch.gate.journal import read_journal


@dataclass(frozen=True, slots=True)
class ServerName:
    """Which server a sample comes from."""

    name: str
    arm: str
    role: str


@dataclass(frozen=True, slots=True)
class Line:
    """A metric over time; both arrays have one length."""

    seconds: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class ServerSamples:
    """All samples of a run; row i says that `series[series_index[i]]` of a server had `values[i]` at a time.

    `scrapes` and `failed_scrapes` count answers and failures by server name.
    """

    servers: tuple[ServerName, ...]
    series: tuple[Series, ...]
    seconds: np.ndarray
    unix_seconds: np.ndarray
    server_index: np.ndarray
    series_index: np.ndarray
    values: np.ndarray
    scrapes: Mapping[str, int]
    failed_scrapes: Mapping[str, int]

    def gauge(self, arm: str, role: str, name: str, labels: Mapping[str, str] | None = None) -> Line:
        """Sum over the servers of an arm and role, at each scrape second."""
        return _sum_lines(self._lines(arm, role, name, labels or {}))

    def largest(self, arm: str, role: str, name: str) -> Line:
        """Largest value among the servers of an arm and role, at each scrape second."""
        return _merged(self._lines(arm, role, name, {}), np.maximum)

    def rate(self, arm: str, role: str, name: str, labels: Mapping[str, str] | None = None) -> Line:
        """Increase per second of a counter, summed over servers; a reset counts from zero."""
        return _sum_lines([_increase(line, per_second=True) for line in self._lines(arm, role, name, labels or {})])

    def mean(self, arm: str, role: str, name: str) -> Line:
        """Mean of a histogram's observations between two scrapes: increase of _sum over increase of _count.

        Seconds without an observation are absent.
        """
        sums = _sum_lines([_increase(line, per_second=False) for line in self._lines(arm, role, f"{name}_sum", {})])
        counts = _sum_lines([_increase(line, per_second=False) for line in self._lines(arm, role, f"{name}_count", {})])
        seconds, left, right = np.intersect1d(sums.seconds, counts.seconds, return_indices=True)
        seen = counts.values[right] > 0
        return Line(seconds[seen], sums.values[left][seen] / counts.values[right][seen])

    def _lines(self, arm: str, role: str, name: str, labels: Mapping[str, str]) -> list[Line]:
        """One line per server and series, on whole seconds so that servers add up."""
        lines = []
        wanted = [index for index, series in enumerate(self.series) if series.matches(name, labels)]
        for server_index, server in enumerate(self.servers):
            if (server.arm, server.role) != (arm, role):
                continue
            for series_index in wanted:
                chosen = (self.server_index == server_index) & (self.series_index == series_index)
                if chosen.any():
                    lines.append(_latest_each_second(self.seconds[chosen], self.values[chosen]))
        return lines


def load_server_samples(path: Path, started_monotonic_seconds: float) -> ServerSamples:
    """Read `server.jsonl.zst`; times become seconds since the run began."""
    table = SeriesTable()
    servers: dict[ServerName, int] = {}
    times: list[float] = []
    unix_times: list[float] = []
    server_indexes: list[int] = []
    lengths: list[int] = []
    series_indexes: list[int] = []
    values: list[float] = []
    scrapes: dict[str, int] = {}
    failed: dict[str, int] = {}
    for record in read_journal(path):
        server = ServerName(record["name"], record["arm"], record["role"])
        if "text" not in record:
            failed[server.name] = failed.get(server.name, 0) + 1
            continue
        scrapes[server.name] = scrapes.get(server.name, 0) + 1
        samples = table.parse(record["text"])
        times.append(record["seconds"] - started_monotonic_seconds)
        unix_times.append(record["unix_seconds"])
        server_indexes.append(servers.setdefault(server, len(servers)))
        lengths.append(len(samples))
        series_indexes += [index for index, _ in samples]
        values += [value for _, value in samples]
    return ServerSamples(
        servers=tuple(servers),
        series=tuple(table.series),
        seconds=np.repeat(np.asarray(times, dtype=np.float64), lengths),
        unix_seconds=np.repeat(np.asarray(unix_times, dtype=np.float64), lengths),
        server_index=np.repeat(np.asarray(server_indexes, dtype=np.int32), lengths),
        series_index=np.asarray(series_indexes, dtype=np.int32),
        values=np.asarray(values, dtype=np.float64),
        scrapes=scrapes,
        failed_scrapes=failed,
    )


def _latest_each_second(seconds: np.ndarray, values: np.ndarray) -> Line:
    """The line on whole seconds. Two scrapes can fall into one when the first came late: the later one counts."""
    whole = np.floor(seconds)
    latest = np.append(np.diff(whole) > 0, True)
    return Line(whole[latest], values[latest])


def _increase(line: Line, *, per_second: bool) -> Line:
    if len(line.values) < 2:
        return Line(np.empty(0), np.empty(0))
    steps = np.diff(line.values)
    steps = np.where(steps < 0, line.values[1:], steps)
    if not per_second:
        return Line(line.seconds[1:], steps)
    return Line(line.seconds[1:], steps / np.diff(line.seconds))


def _sum_lines(lines: Sequence[Line]) -> Line:
    return _merged(lines, np.add)


def _merged(lines: Sequence[Line], together: np.ufunc) -> Line:
    """Values of one second taken together."""
    if not lines:
        return Line(np.empty(0), np.empty(0))
    seconds, positions = np.unique(np.concatenate([line.seconds for line in lines]), return_inverse=True)
    values = np.full(len(seconds), 0.0 if together is np.add else -np.inf)
    together.at(values, positions, np.concatenate([line.values for line in lines]))
    return Line(seconds, values)
