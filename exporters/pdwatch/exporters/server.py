"""GET /metrics and /health of one exporter, on loopback unless told otherwise.

The standard library's threading server: a scrape blocks in the driver anyway, and nothing else starts as fast or
takes as little memory. What it lacks for a port that others reach is added here: bounds on connections, on idle and
slow clients, and on what a caller waits.
"""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import FrameType
from typing import Any, Final

from .errors import ListenFailed
from .exporter import Exporter

DEFAULT_HOST: Final = "127.0.0.1"
# a client that neither asks nor reads for this long is cut off
_IDLE_SECONDS: Final = 75.0
_MOST_CONNECTIONS: Final = 64
# what an answer takes after the collection, out of the scraper's own timeout
_RESERVE_SECONDS: Final = 0.25
_DRAIN_SECONDS: Final = 5.0
_LONGEST_PATIENCE_SECONDS: Final = 3600.0

_log = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `port` as host and port. Raises ListenFailed."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or DEFAULT_HOST
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ListenFailed(text, f"`{port}` is no port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class MetricsServer:
    """Context manager: serves from enter to exit; the exporter itself is the caller's to close.

    Port 0 takes a free one; `address` tells which.
    """

    def __init__(self, exporter: Exporter, host: str = DEFAULT_HOST, port: int = 0) -> None:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self._server = _Server(exporter, host, port)
        except OSError as error:
            raise ListenFailed(shown, error.strerror or str(error)) from error
        if not is_loopback(host):
            _log.warning("%s: %s answers everyone who reaches it, without authentication", exporter.name, shown)
        self._thread = threading.Thread(target=self._server.serve_forever, name="accept", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port served on."""
        host, port = self._server.socket.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.drain(_DRAIN_SECONDS)


def serve(exporter: Exporter, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, answer what is under way, and close the exporter. Main thread only."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with MetricsServer(exporter, host, port) as server:
            _log.info("%s: http://%s:%d/metrics", exporter.name, *server.address)
            stopped.wait()
        _log.info("%s: stopped", exporter.name)
    finally:
        exporter.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, exporter: Exporter, host: str, port: int) -> None:
        self.exporter = exporter
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._busy = 0
        self._is_closing = False
        self._changed = threading.Condition()
        super().__init__((host, port), _Handler)

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def server_close(self) -> None:
        self._is_closing = True
        super().server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            _log.warning("%s: more than %d connections, one refused", self.exporter.name, _MOST_CONNECTIONS)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("%s: a connection broke", self.exporter.name, exc_info=True)

    def enter(self) -> None:
        with self._changed:
            self._busy += 1

    def leave(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def drain(self, seconds: float) -> None:
        """Wait until no request is being answered; idle connections do not count."""
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0, seconds)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    # head and body in one packet
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.server.enter()
        try:
            self._answer()
        finally:
            self.server.leave()

    do_HEAD = do_GET

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path in ("/health", "/healthz"):
            health = self.server.exporter.health()
            status = HTTPStatus.OK if health.is_good else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, ("ok" if health.is_good else health.reason) + "\n")
        elif path == "/":
            self._send(HTTPStatus.OK, f"pdwatch export {self.server.exporter.name}: /metrics, /health\n")
        else:
            self._send(HTTPStatus.NOT_FOUND, "only /metrics and /health are here\n")

    def _metrics(self) -> None:
        snapshot = self.server.exporter.scrape(self._patience_seconds())
        compressed = _accepts_gzip(self.headers.get("Accept-Encoding", ""))
        exposition = snapshot.exposition(self.headers.get("Accept", ""), compressed)
        self._send(HTTPStatus.OK, exposition.body, exposition.content_type, compressed)

    def _patience_seconds(self) -> float | None:
        """What Prometheus says it waits, less what the answer needs; None when nothing usable is said."""
        try:
            seconds = float(self.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
        except ValueError:
            return None
        if not 0 < seconds <= _LONGEST_PATIENCE_SECONDS:
            return None
        return max(seconds - _RESERVE_SECONDS, seconds / 2)

    def _send(
        self,
        status: HTTPStatus,
        body: str | bytes,
        content_type: str = "text/plain; charset=utf-8",
        compressed: bool = False,
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Vary", "Accept, Accept-Encoding")
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        if self.server.is_closing:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    def version_string(self) -> str:
        return "pdwatch-exporter"

    def log_message(self, format: str, *arguments: Any) -> None:
        _log.debug("%s: %s", self.server.exporter.name, format % arguments)


def _accepts_gzip(header: str) -> bool:
    for part in header.split(","):
        name, _, parameters = part.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
