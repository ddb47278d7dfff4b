from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from pdwatch.loadgen.arrival import NOTE_BYTES, ArrivalClock, note_arrivals


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as here, server.accept()[0] as there:
            yield here, there


def note(unix_seconds: float) -> list[tuple[int, int, bytes]]:
    whole = int(unix_seconds)
    return [(socket.SOL_SOCKET, 35, struct.pack("qq", whole, round((unix_seconds - whole) * 1e9)))]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Both clocks, standing still until set."""
    now = {"monotonic": 500.0, "wall": 1_700_000_500.0}
    monkeypatch.setattr("pdwatch.loadgen.arrival.time.monotonic", lambda: now["monotonic"])
    monkeypatch.setattr("pdwatch.loadgen.arrival.time.time", lambda: now["wall"])
    return now


def test_a_reader_that_comes_late_gets_the_time_of_arrival(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    assert note_arrivals(here)
    clock = ArrivalClock()
    before = time.monotonic()
    there.sendall(b"token")
    here.recv(1, socket.MSG_PEEK)
    arrived_by = time.monotonic()
    # the reader is busy elsewhere.
    while time.monotonic() < arrived_by + 0.05:
        clock.look()

    count, notes, _, _ = here.recvmsg_into([bytearray(16)], NOTE_BYTES)
    seconds = clock.seconds(notes)

    assert count == 5
    assert before - 0.001 < seconds < arrived_by + 0.001


def test_without_a_note_it_is_now(pair: tuple[socket.socket, socket.socket]) -> None:
    clock = ArrivalClock()
    clock.look()
    before = time.monotonic()
    assert before <= clock.seconds([]) <= time.monotonic()


def test_a_note_is_read_on_the_monotonic_clock(clocks: dict[str, float]) -> None:
    clock = ArrivalClock()
    clock.look()
    assert clock.seconds(note(1_700_000_499.75)) == pytest.approx(499.75, abs=1e-6)


def test_a_look_soon_after_another_asks_for_no_notes(clocks: dict[str, float]) -> None:
    clock = ArrivalClock()
    assert clock.look()
    clocks["monotonic"] += 0.0001
    assert not clock.look()
    clocks["monotonic"] += 0.0003
    assert clock.look()


def test_a_note_in_the_future_is_now(clocks: dict[str, float]) -> None:
    clock = ArrivalClock()
    clock.look()
    assert clock.seconds(note(1_700_000_501.0)) == 500.0


@pytest.mark.parametrize("jump_seconds", [-3600.0, -0.01, 0.01, 3600.0])
def test_a_wall_clock_that_was_set_makes_no_stamp(clocks: dict[str, float], jump_seconds: float) -> None:
    clock = ArrivalClock()
    clock.look()
    noted = note(clocks["wall"] - 0.002)
    clocks["wall"] += jump_seconds + 0.001
    clocks["monotonic"] += 0.001
    clock.look()
    assert clock.seconds(noted) == 500.001

    clocks["wall"] += 1.0
    clocks["monotonic"] += 1.0
    clock.look()
    assert clock.seconds(note(clocks["wall"] - 0.25)) == pytest.approx(500.751, abs=1e-6)


def test_a_slewed_wall_clock_is_followed(clocks: dict[str, float]) -> None:
    clock = ArrivalClock()
    for _ in range(1000):
        clocks["monotonic"] += 0.1
        clocks["wall"] += 0.10005
        clock.look()
    assert clock.seconds(note(clocks["wall"] - 0.25)) == pytest.approx(clocks["monotonic"] - 0.25, abs=1e-4)
