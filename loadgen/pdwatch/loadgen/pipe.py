"""Messages between the load generator's own processes: pickles with their length, on a pair of sockets."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .errors import LoadgenError

_LENGTH: Final = struct.Struct("<I")
_BUFFER_BYTES: Final = 256 * 1024
_NICE: Final = 10

Handle = Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Failure:
    """A child's last message: why it could not go on, in one line that names the remedy where it is one of ours."""

    text: str


@dataclass(frozen=True, slots=True)
class Child:
    """A process of ours, and our end of the pair."""

    process: int
    pair: socket.socket


def start_child(make_handle: Callable[[], contextlib.AbstractContextManager[Handle]]) -> Child:
    """Fork a process that answers our messages with what the handle yields for each, until there are no more.

    To be called while this process has one thread: the child begins as its copy, so that what is imported already
    costs it nothing. It ends when our end of the pair is closed, also because we were killed, after finishing what it
    had been given.
    """
    ours, its = socket.socketpair()
    sys.stdout.flush()
    process = os.fork()
    if process:
        its.close()
        return Child(process, ours)
    status = 1
    try:
        ours.close()
        status = _serve(its, make_handle)
    finally:
        # not `exit`: what our caller would do on its way out is the parent's to do.
        os._exit(status)


def frame(message: Any) -> bytes:
    """A message as it travels."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Unframer:
    """Messages out of the bytes that arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: memoryview) -> Iterator[Any]:
        """Messages that these bytes complete."""
        buffer = self._buffer
        buffer += data
        start, head = 0, _LENGTH.size
        with memoryview(buffer) as view:
            while len(view) - start >= head:
                end = start + head + _LENGTH.unpack_from(view, start)[0]
                if len(view) < end:
                    break
                yield pickle.loads(view[start + head : end])
                start = end
        del buffer[:start]


def _serve(pair: socket.socket, make_handle: Callable[[], contextlib.AbstractContextManager[Handle]]) -> int:
    # signals meant for the parent are ignored: what we were given is finished, then the pair's end ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # whoever reads the parent's progress waits for its end, not for ours.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, sys.stdin.fileno())
    os.dup2(nowhere, sys.stdout.fileno())
    # the parent stamps what arrives: where cores are few, it goes first, and waking us does not interrupt it.
    os.nice(_NICE)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    gc.freeze()
    gc.enable()
    answers = bytearray()
    try:
        with make_handle() as handle:
            for messages in _batches(pair):
                for message in messages:
                    for answer in handle(message):
                        answers += frame(answer)
                        if len(answers) > _BUFFER_BYTES:
                            _send(pair, answers)
                    # the kernel lets us go on for milliseconds once we have begun, whoever waits for the core.
                    os.sched_yield()
                _send(pair, answers)
    except Exception as error:  # whatever it is, the parent is told, and ends the run
        is_ours = isinstance(error, LoadgenError)
        answers += frame(Failure(str(error) if is_ours else f"the helper process failed: {_line(error)}"))
        _send(pair, answers)
        return 1
    return 0


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _batches(pair: socket.socket) -> Iterator[Iterator[Any]]:
    """The messages that come together, until the pair ends, as it does when the parent was killed."""
    unframer = Unframer()
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    while count := _received(pair, buffer):
        yield unframer.feed(view[:count])


def _received(pair: socket.socket, buffer: bytearray) -> int:
    try:
        return pair.recv_into(buffer)
    except ConnectionResetError:
        return 0


def _send(pair: socket.socket, answers: bytearray) -> None:
    # with the parent gone nobody needs answers, while the work at hand is still to be finished.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pair.sendall(answers)
    answers.clear()
