"""What is kept out of the record."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from pdwatch.loadgen.body import Body
from pdwatch.loadgen.framing import Response
from pdwatch.loadgen.redactor import Redactor

TOKEN = "sk-a/b+c=12"


def response(data: bytes, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(401, named, Body(data, array("Q", [4, len(data)]), array("d", [1.0, 2.0])), True, None)


@pytest.mark.parametrize("spelling", [b"sk-a/b+c=12", rb"sk-a\/b+c=12", b"sk-a%2Fb%2Bc%3D12", b"sk-a/b%2Bc%3D12"])
def test_a_body_keeps_its_length(spelling: bytes) -> None:
    data = b'{"echo": "Bearer ' + spelling + b'", "again": "' + spelling + b'"}'
    got = Redactor(TOKEN).response(response(data)).body
    assert got.data == data.replace(spelling, b"*" * len(spelling))
    assert got.ends[-1] == len(got.data)


def test_headers_that_open_doors_are_left_out() -> None:
    got = Redactor(TOKEN).response(
        response(
            b"",
            set_cookie="a=b",
            set_cookie2="a=b",
            x_api_key="1",
            www_authenticate="Bearer",
            proxy_authorization="x",
            x_amz_cookie="x",
            x_echo=f"you sent {TOKEN}",
            x_ratelimit_remaining_tokens="7",
        )
    )
    assert got.headers == {"x-echo": "you sent [redacted]", "x-ratelimit-remaining-tokens": "7"}


@pytest.mark.parametrize("token", [None, "", "EMPTY"])
def test_what_is_no_secret_stays(token: str | None) -> None:
    data = b'{"content": "EMPTY"}'
    redactor = Redactor(token)
    assert redactor.response(response(data)).body.data is data
    assert redactor.text("EMPTY") == "EMPTY"


LOCUSTFILE = """
from locust import task
from pdwatch.loadgen.chat import ChatUser

class Asker(ChatUser):
    model = "m"
    bearer_token_environment = "DOOR"

    @task
    def ask(self):
        print(self.chat([]).transcript)
        self.environment.runner.quit()
"""


def test_a_locustfile_of_ones_own_sees_no_token(tmp_path: Path, serve) -> None:
    def play(connection: socket.socket, request: bytes) -> bool:
        head = b"HTTP/1.1 500 Oops\r\nSet-Cookie: a=b\r\nX-Echo: %s\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % (TOKEN.encode(), len(request)) + request)
        return True

    server = serve(play)
    path = tmp_path / "locustfile.py"
    path.write_text(LOCUSTFILE)
    command = [sys.executable, "-m", "locust", "-f", str(path), "--headless", "-u", "1", "-t", "20s"]
    done = subprocess.run(
        [*command, "--host", server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "DOOR": TOKEN},
    )
    assert f"Authorization: Bearer {TOKEN}".encode() in server.requests[0]
    assert "x-echo': '[redacted]'" in done.stdout
    assert "set-cookie" not in done.stdout
    assert TOKEN not in done.stdout + done.stderr
