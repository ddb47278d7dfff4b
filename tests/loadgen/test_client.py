"""The client on its sockets: TLS, large requests, connections that do not come about, and what ends a response.

The certificate in tests/data/tls vouches for 127.0.0.1 and itself, for a hundred years, and its key opens nothing else:

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj /CN=pdwatch-test \
        -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout key.pem -out certificate.pem
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from pdwatch.loadgen import Outcome, PlanError
from pdwatch.loadgen.exchange import End
from pdwatch.loadgen.poller import Poller
from pdwatch.loadgen.session import connectors

TLS = Path(__file__).parents[1] / "data" / "tls"


@pytest.fixture
def answer(stream, chunked) -> Callable[[socket.socket, bytes], bool]:
    def play(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(chunked(stream("text"), 40))
        return True

    return play


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


@pytest.fixture
def tls_url(serve, answer) -> str:
    """The URL of a server that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    url: str = serve(answer, lambda connection: context.wrap_socket(connection, server_side=True)).url
    return url.replace("http:", "https:")


def test_tls(tls_url: str, asker, stream) -> None:
    ask = asker(tls_url, ca_file=TLS / "certificate.pem")
    first, second = ask(), ask(sequence=1)
    assert [t.outcome for t in (first, second)] == [Outcome.COMPLETE] * 2
    assert first.body == second.body == stream("text")
    assert (first.connect_seconds is None, second.connect_seconds is None) == (False, True)


def test_a_certificate_that_nobody_vouches_for(tls_url: str, asker) -> None:
    got = asker(tls_url)()
    assert got.outcome is Outcome.CONNECT_ERROR
    assert "CERTIFICATE_VERIFY_FAILED" in got.outcome_detail or "certificate verify failed" in got.outcome_detail
    assert asker(tls_url, is_verified=False)().outcome is Outcome.COMPLETE


def test_no_tls_where_it_is_expected(serve, answer, asker) -> None:
    server = serve(answer)
    assert asker(server.url.replace("http:", "https:"), connect_timeout_seconds=0.2)().outcome is Outcome.CONNECT_ERROR


def test_a_ca_file_that_is_none(asker, tmp_path: Path) -> None:
    ask = asker("http://127.0.0.1:1")
    plan = ask.plan.model_copy(update={"ca_file": tmp_path / "none.pem", "targets": {"candidate": "https://h"}})
    with pytest.raises(PlanError, match=r"ca_file .*none\.pem cannot be used \(No such file"):
        connectors(plan, ask.poller)


def test_a_large_request_holds_up_nobody(serve, answer, asker) -> None:
    may_read = threading.Event()
    body = b"x" * (32 << 20)

    slow_listener = socket.create_server(("127.0.0.1", 0))
    received: list[int] = []

    def read_late() -> None:
        connection, _ = slow_listener.accept()
        with connection:
            may_read.wait(10)
            total = 0
            while total < len(body):
                total += len(connection.recv(1 << 20))
            received.append(total)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = threading.Thread(target=read_late, daemon=True)
    thread.start()
    large, other = asker(f"http://127.0.0.1:{slow_listener.getsockname()[1]}"), asker(serve(answer).url)
    sending = gevent.spawn(large.client.exchange, body)
    with gevent.Timeout(10):
        while not large.meter.unsent_bytes:
            gevent.sleep(0.001)
    # while the one waits for its server to read, the other is answered.
    assert other().outcome is Outcome.COMPLETE
    assert large.meter.unsent_bytes > 0
    may_read.set()
    exchange = sending.get(timeout=10)
    thread.join(timeout=10)
    slow_listener.close()
    assert (exchange.end, received, large.meter.unsent_bytes) == (End.ENDED, [len(body)], 0)


def test_an_answer_before_the_request_is_whole(listener, asker) -> None:
    def refuse() -> None:
        connection, _ = listener.accept()
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.recv(1)
        done.wait(10)
        connection.close()

    done = threading.Event()
    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    ask = asker(f"http://127.0.0.1:{listener.getsockname()[1]}")
    exchange = ask.client.exchange(b"x" * (32 << 20))
    done.set()
    thread.join(timeout=10)
    assert (exchange.end, bytes(exchange.raw[:12])) == (End.ENDED, b"HTTP/1.1 413")
    # what the server did not read must not become the next request's beginning.
    assert not ask.client.is_connected
    assert ask.meter.unsent_bytes == 0


def test_nobody_accepts(asker) -> None:
    # one connection fills the queue of a listener that holds none, and the kernel answers no other.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            got = asker(f"http://127.0.0.1:{full.getsockname()[1]}", connect_timeout_seconds=0.1)()
    assert (got.outcome, got.outcome_detail) == (Outcome.CONNECT_ERROR, "no connection within 0.1 s")


def test_an_unknown_host(asker) -> None:
    got = asker("http://nowhere.invalid:1")()
    assert got.outcome is Outcome.CONNECT_ERROR
    assert got.outcome_detail


@pytest.mark.parametrize(
    ("surplus", "is_kept"),
    [(b"", True), (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False), (b"\x00garbage", False)],
    ids=["none", "another response", "garbage"],
)
def test_what_follows_a_response(serve, asker, surplus: bytes, is_kept: bool) -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    server = serve(lambda connection, request: connection.sendall(response + surplus) or True)
    ask = asker(server.url)
    got = ask()
    assert (got.status, got.body) == (200, b"{}")
    assert ask.client.is_connected is is_kept


def test_an_old_server_closes(serve, stream, asker) -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    def play(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head + stream("text"))
        return False

    ask = asker(serve(play).url)
    assert [ask(sequence=n).outcome for n in range(2)] == [Outcome.COMPLETE] * 2


class Tunnel:
    """A proxy that connects its clients to whatever they ask for, or refuses."""

    def __init__(self, serve, target: str, status: bytes) -> None:
        self.asked: list[bytes] = []

        def play(connection: socket.socket, request: bytes) -> bool:
            self.asked.append(request.split(b"\r\n")[0])
            connection.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")
            if not status.startswith(b"200"):
                return False
            host, port = target.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as onward:
                back = threading.Thread(target=pump, args=(onward, connection), daemon=True)
                back.start()
                pump(connection, onward)
                back.join(timeout=10)
            return False

        self.url = serve(play).url


def pump(source: socket.socket, into: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            into.sendall(data)
        into.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_a_proxy_only_where_it_is_asked_for(serve, answer, asker, monkeypatch: pytest.MonkeyPatch) -> None:
    target = serve(answer).url
    proxy = Tunnel(serve, target, b"200 Connection established")
    monkeypatch.setenv("http_proxy", proxy.url)
    assert (asker(target)().outcome, proxy.asked) == (Outcome.COMPLETE, [])
    assert asker(target, proxy=proxy.url)().outcome is Outcome.COMPLETE
    assert proxy.asked == [b"CONNECT %s HTTP/1.1" % target.removeprefix("http://").encode()]


def test_a_proxy_that_refuses(serve, answer, asker) -> None:
    target = serve(answer).url
    got = asker(target, proxy=Tunnel(serve, target, b"403 Forbidden").url)()
    assert (got.outcome, got.outcome_detail) == (
        Outcome.CONNECT_ERROR,
        "the proxy gives no tunnel: HTTP/1.1 403 Forbidden",
    )


def test_an_error_in_the_poller_is_told() -> None:
    poller = Poller()
    poller.later(lambda: 1 / 0)
    with gevent.Timeout(10):
        while poller.error is None:
            gevent.sleep(0)
    assert isinstance(poller.error, ZeroDivisionError)
    poller.close()
