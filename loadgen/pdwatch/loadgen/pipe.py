"""Messages between the load generator's own processes: pickles on a pipe, in the child's part of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True, slots=True)
class Failure:
    """A child's last message: why it could not go on, in one line."""

    text: str


def messages(file: IO[bytes]) -> Iterator[Any]:
    """Each message until the pipe ends, whole or in the middle of one, as it does when the other side was killed."""
    while True:
        try:
            message = pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            return
        yield message


def serve(handle: Callable[[Any], Iterable[Any]]) -> int:
    """Answer the parent's messages until there are no more; the exit status.

    Signals meant for the parent are ignored: what the child was given is finished, then the pipe's end ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        try:
            for message in messages(sys.stdin.buffer):
                for answer in handle(message):
                    _answer(answers, answer)
        except Exception as error:  # whatever it is, the parent is told, and ends the run
            _answer(answers, Failure(f"{type(error).__name__}: {error}"))
            return 1
    return 0


def _answer(answers: IO[bytes], answer: Any) -> None:
    # with the parent gone nobody needs answers, while the work at hand is still to be finished.
    with contextlib.suppress(BrokenPipeError):
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
