"""A server that plays bytes, and what the load generator's tests share."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdwatch.loadgen.transcript import Label, Outcome, Transcript

STREAMS = Path(__file__).parents[1] / "data" / "streams"

Play = Callable[[socket.socket, bytes], bool]


class CannedServer:
    """Answers each request with `play(connection, request)`, which tells whether the connection is kept."""

    def __init__(self, play: Play) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._play = play
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"http://{host}:{port}"

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(timeout=10)
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side has closed it already
        for thread in self._threads[1:]:
            thread.join(timeout=10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while (request := read_request(connection)) is not None:
                    self.requests.append(request)
                    if not self._play(connection, request):
                        return
            except OSError:
                return


def read_request(connection: socket.socket) -> bytes | None:
    """One whole request, None when the client has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0]) - len(body) if lengths else 0
    while missing > 0:
        more = connection.recv(missing)
        data, missing = data + more, missing - len(more)
    return data


def chunked_response(
    body: bytes, size: int = 1 << 20, *, ending: bytes = b"0\r\n\r\n", status: str = "200 OK"
) -> bytes:
    """An event stream response, its body in HTTP chunks of `size` bytes."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + ending


def make_transcript(
    chunks: tuple[tuple[float, bytes], ...], *, dialect: str = "sglang", outcome: Outcome = Outcome.COMPLETE
) -> Transcript:
    """A transcript sent at second 100 that holds these body chunks."""
    return Transcript(
        request_id="candidate-0-measured-0",
        arm="candidate",
        level=4,
        phase=0,
        label=Label.MEASURED,
        user=1,
        number=400000000,
        dialect=dialect,
        target="http://127.0.0.1:1",
        task=None,
        sent_body="{}",
        connect_seconds=None,
        sent_seconds=100.0,
        sent_unix_seconds=1.7e9,
        status=200,
        response_headers={"content-type": "text/event-stream"},
        chunks=chunks,
        ended_seconds=101.0,
        outcome=outcome,
        outcome_detail="",
    )


@pytest.fixture
def stream() -> Callable[[str], bytes]:
    """Reads a canned stream by name."""
    return lambda name: (STREAMS / f"{name}.sse").read_bytes()


@pytest.fixture
def chunked() -> Callable[..., bytes]:
    """Builds event stream responses; see `chunked_response`."""
    return chunked_response


@pytest.fixture
def transcript() -> Callable[..., Transcript]:
    """Builds transcripts; see `make_transcript`."""
    return make_transcript


@pytest.fixture
def serve() -> Iterator[Callable[[Play], CannedServer]]:
    """Starts servers that are closed after the test."""
    servers: list[CannedServer] = []

    def start(play: Play) -> CannedServer:
        servers.append(CannedServer(play))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
