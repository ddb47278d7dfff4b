from __future__ import annotations

import gzip
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import Metric

from pdwatch.exporters import (
    CollectionFailed,
    CollectionTimedOut,
    Exporter,
    Families,
    FieldErrors,
    ListenFailed,
    MetricDefinition,
    MetricSource,
    MetricsServer,
    parse_address,
)
from pdwatch.exporters.flight import SharedFlight

LEVEL = MetricDefinition("test_level", "gauge", "A level.")
SECONDS = 20.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.001)


def level(value: float) -> list[Metric]:
    families = Families((LEVEL,))
    families.add(LEVEL, value)
    return families.built()


class SteadySource:
    """A source that gives what it is told."""

    def __init__(self, families: Sequence[Metric] = ()) -> None:
        self.field_errors = FieldErrors()
        self.families = families
        self.failure: Exception | None = None
        self.collections = 0
        self.is_closed = False

    def collect(self) -> Sequence[Metric]:
        self.collections += 1
        if self.failure is not None:
            raise self.failure
        return self.families

    def close(self) -> None:
        self.is_closed = True


def exporter_of(source: MetricSource, **settings: float) -> Exporter:
    return Exporter("test", source, **settings)  # type: ignore[arg-type]  # limit_seconds only


class HeldSource(SteadySource):
    """Collects when released."""

    def __init__(self) -> None:
        super().__init__(level(1))
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()

    def collect(self) -> list[Metric]:
        self.begun.release()
        assert self.release.wait(SECONDS)
        return list(super().collect())


@pytest.fixture
def source() -> SteadySource:
    return SteadySource(level(7))


@pytest.fixture
def server(source: SteadySource) -> Iterator[MetricsServer]:
    with MetricsServer(exporter_of(source)) as server:
        yield server


def get(server: MetricsServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*server.address, timeout=SECONDS)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def is_answered(server: MetricsServer) -> bool:
    try:
        return get(server, "/metrics")[0] == 200
    except (http.client.HTTPException, OSError):
        return False


def test_serves_text_and_openmetrics(server: MetricsServer) -> None:
    status, headers, body = get(server, "/metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"\ntest_level 7.0\n" in body and b"# EOF" not in body
    _, headers, body = get(server, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip", True), ("deflate, gzip;q=0.5", True), ("identity", False), ("gzip;q=0", False), ("", False)],
)
def test_compresses_when_asked(server: MetricsServer, accepted: str, is_compressed: bool) -> None:
    _, headers, body = get(server, "/metrics", Accept_Encoding=accepted)
    assert (headers.get("content-encoding") == "gzip") is is_compressed
    assert b"test_level" in (gzip.decompress(body) if is_compressed else body)


def test_tells_about_itself(server: MetricsServer, source: SteadySource) -> None:
    source.field_errors.note("power", "not_supported")
    source.field_errors.note("power", "not_supported")
    body = get(server, "/metrics")[2].decode()
    # once for each collection, not for each device that lacks it
    assert 'pdwatch_exporter_field_errors_total{field="power",reason="not_supported"} 1.0' in body
    for name in ("build_info", "up", "collection_seconds", "collections_total", "last_success_timestamp_seconds"):
        assert f"\npdwatch_exporter_{name}" in body
    assert "\nprocess_resident_memory_bytes " in body and "\nprocess_cpu_seconds_total " in body


def test_complaint_18_a_failed_collection_serves_no_old_data(server: MetricsServer, source: SteadySource) -> None:
    assert get(server, "/health")[:1] == (200,)
    source.failure = CollectionFailed("the driver is gone")
    status, _, body = get(server, "/metrics")
    assert status == 200
    assert b"test_level" not in body and b"\npdwatch_exporter_up 0.0\n" in body
    for path in ("/health", "/healthz"):
        status, _, reason = get(server, path)
        assert (status, reason) == (503, b"the driver is gone\n")
    source.failure = None
    assert b"\npdwatch_exporter_up 1.0\n" in get(server, "/metrics")[2]
    assert get(server, "/health")[0] == 200


def test_complaint_18_health_collects_when_nobody_else_has(server: MetricsServer, source: SteadySource) -> None:
    source.failure = CollectionFailed("from the start")
    assert get(server, "/health")[0] == 503
    assert source.collections == 1


def test_a_fault_of_ours_is_a_failed_collection(
    server: MetricsServer, source: SteadySource, caplog: pytest.LogCaptureFixture
) -> None:
    source.failure = ZeroDivisionError("division by zero")
    assert b"\npdwatch_exporter_up 0.0\n" in get(server, "/metrics")[2]
    assert b"please report it" in get(server, "/health")[2]
    assert "Traceback" in caplog.text


def test_complaint_25_concurrent_scrapes_share_one_collection() -> None:
    source = HeldSource()
    exporter = exporter_of(source)
    with MetricsServer(exporter) as server, ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(get, server, "/metrics") for _ in range(20)]
        assert source.begun.acquire(timeout=SECONDS)
        until(lambda: exporter._flight.waiting == 20)
        source.release.set()
        bodies = {answer.result(SECONDS)[2] for answer in answers}
    assert source.collections == 1
    assert len(bodies) == 1


def test_a_collection_that_hangs_is_given_up_and_not_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    source = HeldSource()
    exporter = exporter_of(source, limit_seconds=0.2)
    with MetricsServer(exporter) as server:
        begun = time.monotonic()
        body = get(server, "/metrics")[2].decode()
        assert time.monotonic() - begun < 5
        assert "pdwatch_exporter_up 0.0" in body and "test_level" not in body
        assert 'pdwatch_exporter_collections_total{outcome="timeout"} 1.0' in body
        # the limit of the one that hangs is over: nobody waits for it any more
        begun = time.monotonic()
        assert get(server, "/health")[0] == 503
        get(server, "/metrics")
        assert time.monotonic() - begun < 0.2
        # once, by the first scrape
        assert source.begun.acquire(blocking=False) and not source.begun.acquire(blocking=False)
    exporter.close()
    # closing the source under a thread in the driver would crash
    assert not source.is_closed and "still hangs" in caplog.text
    source.release.set()


def test_a_scraper_with_less_patience_is_answered_in_time() -> None:
    source = HeldSource()
    with MetricsServer(exporter_of(source, limit_seconds=SECONDS)) as server:
        begun = time.monotonic()
        body = get(server, "/metrics", X_Prometheus_Scrape_Timeout_Seconds="0.4")[2]
        assert time.monotonic() - begun < 0.4
        assert b"pdwatch_exporter_up 0.0" in body
        source.release.set()


@pytest.mark.parametrize("patience", ["", "nan", "-1", "inf", "abc", "1e9"])
def test_a_senseless_patience_is_ignored(server: MetricsServer, patience: str) -> None:
    assert b"test_level 7" in get(server, "/metrics", X_Prometheus_Scrape_Timeout_Seconds=patience)[2]


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "GET", 200),
        ("/metrics?x=1", "GET", 200),
        ("/metrics", "HEAD", 200),
        ("/x", "GET", 404),
        ("/", "POST", 501),
    ],
)
def test_answers_only_what_it_has(server: MetricsServer, path: str, method: str, status: int) -> None:
    found, headers, body = get(server, path, method)
    assert found == status
    assert headers["server"] == "pdwatch-exporter"
    assert (body == b"") is (method == "HEAD")


def test_stopping_answers_what_is_under_way() -> None:
    source = HeldSource()
    exporter = exporter_of(source)
    server = MetricsServer(exporter)
    server.__enter__()
    address = server.address
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(get, server, "/metrics")
        assert source.begun.acquire(timeout=SECONDS)
        stopping = pool.submit(server.__exit__)
        until(lambda: server._server.is_closing)
        assert not stopping.done()
        source.release.set()
        assert answer.result(SECONDS)[0] == 200
        stopping.result(SECONDS)
    exporter.close()
    assert source.is_closed
    with pytest.raises(OSError):
        socket.create_connection(address, timeout=1)


def test_an_idle_connection_does_not_hold_up_the_stop(source: SteadySource) -> None:
    with MetricsServer(exporter_of(source)) as server:
        held = socket.create_connection(server.address, timeout=SECONDS)
        begun = time.monotonic()
    assert time.monotonic() - begun < 3
    held.close()


def test_too_many_connections_are_refused(source: SteadySource, caplog: pytest.LogCaptureFixture) -> None:
    with MetricsServer(exporter_of(source)) as server:
        held = [socket.create_connection(server.address, timeout=SECONDS) for _ in range(64)]
        with pytest.raises((http.client.HTTPException, OSError)):
            get(server, "/metrics")
        for connection in held:
            connection.close()
        until(lambda: is_answered(server))
    assert "more than 64 connections" in caplog.text


def test_is_on_loopback_unless_told(source: SteadySource, caplog: pytest.LogCaptureFixture) -> None:
    with MetricsServer(exporter_of(source)) as server:
        assert server.address[0] == "127.0.0.1"
    assert "everyone" not in caplog.text
    with MetricsServer(exporter_of(source), "0.0.0.0"):
        assert "everyone who reaches it" in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9520", ("127.0.0.1", 9520)),
        (":9520", ("127.0.0.1", 9520)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:80", ("::1", 80)),
        ("gpu7:65535", ("gpu7", 65535)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "host:", "host:http", "host:65536", "host:-1", "host:²"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ListenFailed, match="--listen"):
        parse_address(text)


def test_a_port_in_use_is_named(server: MetricsServer, source: SteadySource) -> None:
    host, port = server.address
    with pytest.raises(ListenFailed, match=f"127.0.0.1:{port}: Address already in use"):
        MetricsServer(exporter_of(source), host, port)


def test_a_flight_hands_on_what_its_work_raises() -> None:
    def fail() -> None:
        raise KeyError("x")

    flight = SharedFlight(fail, 1.0)
    for _ in range(2):
        with pytest.raises(KeyError):
            flight.join()


def test_a_flight_is_over_when_it_has_ended() -> None:
    results = iter(range(3))
    flight = SharedFlight(lambda: next(results), SECONDS)
    assert [flight.join(), flight.join(), flight.join()] == [0, 1, 2]
    assert flight.wait_until_idle(0)


def test_patience_ends_a_wait_but_not_the_flight() -> None:
    release = threading.Event()
    flight = SharedFlight(lambda: release.wait(SECONDS), SECONDS)
    with pytest.raises(CollectionTimedOut):
        flight.join(0.01)
    release.set()
    assert flight.wait_until_idle(SECONDS)
