"""A server that plays bytes, and what the load generator's tests share."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import Phase, Plan
from pdwatch.loadgen.body import Body
from pdwatch.loadgen.client import StreamClient
from pdwatch.loadgen.exchange import Exchange
from pdwatch.loadgen.meter import Meter
from pdwatch.loadgen.poller import Poller
from pdwatch.loadgen.prepared import Kept, Preparer
from pdwatch.loadgen.recording import understand
from pdwatch.loadgen.request import Cancel
from pdwatch.loadgen.session import connectors
from pdwatch.loadgen.sources import open_source
from pdwatch.loadgen.transcript import Label, Outcome, Transcript

STREAMS = Path(__file__).parents[1] / "data" / "streams"

Play = Callable[[socket.socket, bytes], bool]
Wrap = Callable[[socket.socket], socket.socket]


class CannedServer:
    """Answers each request with `play(connection, request)`, which tells whether the connection is kept.

    `wrap` is put around each connection.
    """

    def __init__(self, play: Play, wrap: Wrap = lambda connection: connection) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._play = play
        self._wrap = wrap
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
        try:
            with self._wrap(connection) as wrapped:
                while (request := read_request(wrapped)) is not None:
                    self.requests.append(request)
                    if not self._play(wrapped, request):
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


class Asker:
    """A client of a server, and the transcripts of what it asks. `plan_fields` are those of its plan."""

    def __init__(self, url: str, bearer_token: str | None = None, **plan_fields: Any) -> None:
        self.plan = Plan(
            seed=1,
            targets={"candidate": url},
            model="tiny-toolcaller",
            phases=(Phase(index=0, arm="candidate", level=1),),
            **{"request_timeout_seconds": 20, "most_response_bytes": 1 << 20, **plan_fields},
        )
        self.poller = Poller()
        self.meter = Meter()
        self.preparer = Preparer(self.plan, open_source(self.plan), self.plan.phases[0], 0, bearer_token)
        self.client = StreamClient(
            connectors(self.plan, self.poller)[url],
            request_timeout_seconds=self.plan.request_timeout_seconds,
            most_response_bytes=self.plan.most_response_bytes,
            meter=self.meter,
        )

    def __call__(self, cancel: Cancel | None = None, sequence: int = 0) -> Transcript:
        """Ask for one task."""
        prepared, kept = self.preparer.first(Label.MEASURED, sequence)
        return self.transcript(self.client.exchange(prepared.message, cancel), prepared.request_id, kept)

    def transcript(self, exchange: Exchange, request_id: str, kept: Kept) -> Transcript:
        """What is recorded of an exchange."""
        return understand(exchange, request_id, Label.MEASURED, 0, kept, self.preparer, self.plan.dialect)[0]

    def close(self) -> None:
        self.client.close()
        self.poller.close()


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
        received=Body.from_chunks(chunks),
        ended_seconds=101.0,
        outcome=outcome,
        outcome_detail="",
    )


@pytest.fixture
def asker() -> Iterator[Callable[..., Asker]]:
    """Makes askers, which are closed after the test."""
    askers: list[Asker] = []

    def make(*arguments: Any, **fields: Any) -> Asker:
        askers.append(Asker(*arguments, **fields))
        return askers[-1]

    yield make
    for one in askers:
        one.close()


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
def serve() -> Iterator[Callable[..., CannedServer]]:
    """Starts servers that are closed after the test."""
    servers: list[CannedServer] = []

    def start(*arguments: Any) -> CannedServer:
        servers.append(CannedServer(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
