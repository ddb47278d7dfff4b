"""Every outcome class through a real socket."""

from __future__ import annotations

import socket
import struct
import threading

import gevent
import pytest

from pdwatch.loadgen import Label, Outcome
from pdwatch.loadgen.exchange import End, Exchange
from pdwatch.loadgen.request import Cancel


def sends(data: bytes, *, keep: bool = True):
    def play(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(data)
        return keep

    return play


PLAIN = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
REFUSED = b'{"error":{"message":"queue is full"}}'

CASES = [
    ("tool_call", {}, Outcome.COMPLETE, ""),
    ("carriage_returns", {}, Outcome.COMPLETE, ""),
    ("bare_returns", {}, Outcome.COMPLETE, ""),
    ("unusual_forms", {}, Outcome.COMPLETE, ""),
    ("no_finish_reason", {}, Outcome.TRUNCATED, "no finish_reason, no usage, no [DONE]"),
    ("no_usage", {}, Outcome.TRUNCATED, "no usage"),
    ("no_done", {}, Outcome.TRUNCATED, "no [DONE]"),
    ("error_object", {}, Outcome.IN_BAND_ERROR, "KV transfer failed"),
    ("error_event", {}, Outcome.IN_BAND_ERROR, "worker died"),
    ("error_python", {}, Outcome.IN_BAND_ERROR, "the input is too long"),
    ("error_object", {"ending": b""}, Outcome.IN_BAND_ERROR, "KV transfer failed"),
    ("only_done", {}, Outcome.EMPTY, "no choice"),
    ("tool_call", {"ending": b""}, Outcome.RESET, "closed the connection"),
    ("tool_call", {"ending": b"0\r\nX-Trailer: 1\r\n\r\n"}, Outcome.COMPLETE, ""),
    ("tool_call", {"status": "503 Service Unavailable"}, Outcome.HTTP_ERROR, "HTTP 503"),
]


@pytest.mark.parametrize("size", [1 << 20, 100, 1], ids=["one chunk", "chunks of 100", "chunks of 1"])
@pytest.mark.parametrize(("name", "how", "outcome", "detail"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_stream_outcomes(serve, stream, chunked, name, how, outcome, detail, size, asker) -> None:
    server = serve(sends(chunked(stream(name), size, **how), keep=how.get("ending") != b""))
    got = asker(server.url)()
    assert got.outcome is outcome
    assert detail in got.outcome_detail
    assert got.body == stream(name)


def test_a_plan_that_expects_no_usage(serve, stream, chunked, asker) -> None:
    got = asker(serve(sends(chunked(stream("no_usage")))).url, promises_usage=False)()
    assert (got.outcome, got.promises_usage) == (Outcome.COMPLETE, False)


@pytest.mark.parametrize(
    ("response", "outcome", "detail"),
    [
        pytest.param(PLAIN % (b"200 OK", b"text/html", 6, b"<html>"), Outcome.EMPTY, "no choice", id="a page"),
        pytest.param(PLAIN % (b"200 OK", b"text/event-stream", 0, b""), Outcome.EMPTY, "no choice", id="nothing"),
        pytest.param(
            PLAIN % (b"200 OK", b"application/json", len(REFUSED), REFUSED),
            Outcome.IN_BAND_ERROR,
            "queue is full",
            id="an error as JSON with status 200",
        ),
        pytest.param(
            PLAIN % (b"429 Too Many Requests", b"application/json", len(REFUSED), REFUSED),
            Outcome.HTTP_ERROR,
            "HTTP 429: " + REFUSED.decode(),
            id="429",
        ),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", Outcome.HTTP_ERROR, "not an HTTP response", id="another protocol"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"X-Long: 1\r\n" * 9000, Outcome.HTTP_ERROR, "head is over", id="an endless head"
        ),
        pytest.param(b"", Outcome.RESET, "closed the connection", id="closed without a word"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1", Outcome.RESET, "closed", id="body cut short"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n", Outcome.EMPTY, "no choice", id="body ends by closing"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * 99999,
            Outcome.TRUNCATED,
            "over 4096",
            id="too long",
        ),
    ],
)
def test_other_responses(serve, response: bytes, outcome: Outcome, detail: str, asker) -> None:
    most_bytes = 1 << 20 if b"X-Long" in response else 4096
    got = asker(serve(sends(response, keep=False)).url, most_response_bytes=most_bytes)()
    assert got.outcome is outcome
    assert detail in got.outcome_detail


def test_early_hints_go_before_the_response(serve, stream, chunked, asker) -> None:
    server = serve(sends(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + chunked(stream("text"))))
    got = asker(server.url)()
    assert (got.outcome, got.status) == (Outcome.COMPLETE, 200)
    assert "link" not in got.response_headers


def test_reset(serve, stream, chunked, asker) -> None:
    def play(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(chunked(stream("text"), ending=b"")[:200])
        # closing with a linger of 0 s sends a reset instead of an orderly end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    got = asker(serve(play).url)()
    assert (got.outcome, got.outcome_detail) == (Outcome.RESET, "Connection reset by peer")


def test_connect_error(free_port: int, asker) -> None:
    got = asker(f"http://127.0.0.1:{free_port}")()
    assert (got.outcome, got.outcome_detail) == (Outcome.CONNECT_ERROR, "Connection refused")
    assert (got.status, got.chunks) == (None, ())


@pytest.fixture
def half_stream(serve, stream, chunked):
    """A server that stops in the middle of its answer, and tells when the client has gone."""
    gone = threading.Event()

    def play(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(chunked(stream("text"), ending=b"")[:400])
        try:
            connection.recv(1)
        except ConnectionResetError:
            pass
        gone.set()
        return False

    server = serve(play)
    server.gone = gone
    return server


def test_timeout(half_stream, asker) -> None:
    got = asker(half_stream.url, request_timeout_seconds=0.2)()
    assert (got.outcome, got.outcome_detail) == (Outcome.TIMEOUT, "no end after 0.2 s")
    assert got.status == 200
    assert got.ended_seconds - got.sent_seconds >= 0.2
    assert half_stream.gone.wait(10)


@pytest.mark.parametrize(
    ("cancel", "detail"),
    [
        (Cancel(after_seconds=0.05), "we disconnected 50 ms after sending, as planned"),
        (Cancel(after_reads=1), "we disconnected after 1 reads, as planned"),
    ],
    ids=["by time", "by reads"],
)
def test_cancelled(half_stream, cancel: Cancel, detail: str, asker) -> None:
    got = asker(half_stream.url)(cancel)
    assert (got.outcome, got.outcome_detail) == (Outcome.CANCELLED, detail)
    assert half_stream.gone.wait(10)


def test_killing_the_user_cancels(half_stream, asker) -> None:
    user = gevent.spawn(asker(half_stream.url))
    with gevent.Timeout(10):
        while not half_stream.requests:
            gevent.sleep(0.001)
    user.kill()
    assert (user.value.outcome, user.value.outcome_detail) == (Outcome.CANCELLED, "the run was stopped")


def test_connection_is_kept_and_renewed(serve, stream, chunked, asker) -> None:
    answers = 0

    def play(connection: socket.socket, request: bytes) -> bool:
        nonlocal answers
        answers += 1
        connection.sendall(chunked(stream("text"), 50))
        return answers != 2

    server = serve(play)
    ask = asker(server.url)
    first, second = (ask(sequence=sequence) for sequence in (0, 1))
    # the server closes the kept connection after its second answer; the client must see that before it sends.
    with gevent.Timeout(10):
        while ask.client.is_connected:
            gevent.sleep(0.001)
    third = ask(sequence=2)
    assert [t.outcome for t in (first, second, third)] == [Outcome.COMPLETE] * 3
    assert [t.connect_seconds is None for t in (first, second, third)] == [False, True, False]
    assert server.connections == 2


def test_stamps_are_in_order_and_after_sending(serve, stream, chunked, asker) -> None:
    got = asker(serve(sends(chunked(stream("text"), 40))).url)()
    seconds = [stamp for stamp, _ in got.chunks]
    assert got.sent_seconds < seconds[0]
    assert seconds == sorted(seconds)
    assert got.ended_seconds >= seconds[-1]


def test_what_is_sent(serve, stream, chunked, asker) -> None:
    server = serve(sends(chunked(stream("text"))))
    got = asker(server.url + "/prefix/v1", "secret")(sequence=3)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /prefix/v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in head
    assert b"\r\nX-Request-ID: candidate-0-measured-3\r\n" in head
    assert got.sent_body.encode() == body
    assert "secret" not in repr(got)
    assert got.task is not None
    assert got.task.nonce in got.sent_body


def test_what_opens_doors_is_not_recorded(serve, stream, chunked, asker) -> None:
    secret = b"Set-Cookie: a=hunter2\r\nWWW-Authenticate: hunter2\r\nProxy-Authenticate: hunter2\r\nX-Kept: yes\r\n"
    head, _, body = chunked(stream("text")).partition(b"\r\n")
    server = serve(sends(head + b"\r\nAuthorization: hunter2\r\n" + secret + body))
    got = asker(server.url)()
    assert got.outcome is Outcome.COMPLETE
    assert got.response_headers["x-kept"] == "yes"
    assert "hunter2" not in repr(got)


def test_an_exchange_without_a_response_has_no_status(asker) -> None:
    ask = asker("http://127.0.0.1:1")
    request, kept = ask.preparer.first(Label.MEASURED, 0)
    broken = Exchange(None, 1.0, 2.0, end=End.BROKEN, detail="broken", ended_seconds=1.5)
    got = ask.transcript(broken, request.request_id, kept)
    assert (got.status, got.outcome, got.outcome_detail) == (None, Outcome.RESET, "broken")
