"""Recorded responses and what is expected of them, played by a server to the real client."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import Label, Transcript
from pdwatch.loadgen.request import Cancel

STREAMS = Path(__file__).parents[2] / "data" / "streams"
GROUPS = ("matrix", "reports", "edges", "outcomes", "whole", "completions")


@dataclass(frozen=True)
class Case:
    """A response, byte for byte, and what stands about it in `expected.json` (see the README beside it)."""

    group: str
    name: str
    response: bytes
    expected: dict[str, Any]

    @property
    def ending(self) -> str:
        """What the server does after the last byte: keep, close, reset or stall."""
        ending: str = self.expected.get("socket", "keep")
        return ending

    @property
    def is_streamed(self) -> bool:
        asked: bool = self.expected.get("is_streamed", True)
        return asked

    @property
    def promises_usage(self) -> bool:
        asked: bool = self.expected.get("promises_usage", True)
        return asked

    @property
    def cancel(self) -> Cancel | None:
        return Cancel(**self.expected["cancel"]) if "cancel" in self.expected else None

    def play(self, connection: socket.socket, ends: Sequence[int], gone: threading.Event) -> bool:
        """Send the response in writes that end at these offsets; whether the connection is kept."""
        # without this the kernel would join small writes, and a reset would drop what it still holds back.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pause = self.expected.get("pause")
        if pause is not None:
            ends = sorted({*ends, pause["at_byte"]})
        start = 0
        for end in (*ends, len(self.response)):
            if start < end:
                connection.sendall(self.response[start:end])
            start = end
            if pause is not None and end == pause["at_byte"]:
                # a server that takes its time, not a wait for anything.
                gone.wait(pause["seconds"])
        if self.ending == "stall":
            try:
                connection.recv(1)
            except ConnectionResetError:
                pass
            gone.set()
        if self.ending == "reset":
            # closing with a linger of 0 s sends a reset instead of an orderly end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return self.ending == "keep"


def load_cases() -> list[Case]:
    """All recorded cases, in the order of their files."""
    return [
        Case(group, name, (STREAMS / group / f"{name}.http").read_bytes(), expected)
        for group in GROUPS
        for name, expected in json.loads((STREAMS / group / "expected.json").read_text(encoding="utf-8")).items()
    ]


CASES = load_cases()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument `case` runs for every recorded case."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[f"{case.group}/{case.name}" for case in CASES])


@pytest.fixture
def cases() -> list[Case]:
    """All recorded cases."""
    return CASES


@pytest.fixture
def make_case() -> Callable[[str, bytes, dict[str, Any]], Case]:
    """Makes a case of a response that lies elsewhere."""
    return lambda name, response, expected: Case("elsewhere", name, response, expected)


@pytest.fixture
def record(serve, asker) -> Iterator[Callable[..., Transcript]]:
    """Plays a case, in writes that end at `ends`, to the real client; gives what is recorded of it."""
    gone = threading.Event()

    def play(case: Case, ends: Sequence[int] = (), **plan_fields: Any) -> Transcript:
        server = serve(lambda connection, request: case.play(connection, ends, gone))
        if case.ending == "stall" and case.cancel is None:
            plan_fields.setdefault("request_timeout_seconds", 0.1)
        plan_fields.setdefault("dialect", case.expected.get("dialect", "sglang"))
        one = asker(server.url, **plan_fields)
        prepared, kept = one.preparer.first(Label.MEASURED, 0)
        work = replace(kept.work, is_streamed=case.is_streamed, promises_usage=case.promises_usage)
        if "path" in case.expected:
            work = replace(work, path=case.expected["path"])
        exchange = one.client.exchange(prepared.message, case.cancel)
        transcript: Transcript = one.transcript(exchange, prepared.request_id, replace(kept, work=work))
        return transcript

    yield play
    gone.set()
