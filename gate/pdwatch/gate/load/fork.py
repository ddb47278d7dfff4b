"""The load generator as a copy of this process, which has loaded half of what it needs already.

Starting an interpreter of its own and loading the plan's classes once more costs a fifth of a second of CPU, as much as
14,000 tokens.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from pdwatch.gate.driver import STOP_SECONDS, Event, check_exit

# from linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1


def can_copy() -> bool:
    """Whether a copy of this process works: a copy has one thread only, and not gevent's loop of another process."""
    return threading.active_count() == 1 and "gevent" not in sys.modules


def drive_in_copy(plan: Path, directory: Path, log: Path, relay: Callable[[Event], None]) -> None:
    """As `driver.drive` with its own module, in a copy of this process; `can_copy` must hold.

    `relay` gets each progress event. Raises LoadFailed when the copy ends by itself before all phases have run.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # what is here so far stays shared with the copy: nobody looks through it for garbage.
    gc.freeze()
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_driver(parent_pid, read_end, write_end, log, ("--plan", str(plan), "--out", str(directory)))
    os.close(write_end)
    status: int | None = None
    try:
        with os.fdopen(read_end, "rb") as lines:
            try:
                for line in lines:
                    _relay(line, relay)
                status = _wait(pid)
            finally:
                if status is None:
                    _stop(pid, lines.fileno())
    finally:
        gc.unfreeze()
    check_exit(status, log)


def _relay(line: bytes, relay: Callable[[Event], None]) -> None:
    try:
        event: Any = json.loads(line)
    except ValueError:
        # a library's stray print must not end a run
        return
    if isinstance(event, dict):
        relay(event)


def _become_driver(parent_pid: int, read_end: int, write_end: int, log: Path, arguments: Sequence[str]) -> NoReturn:
    """Run the load generator; this process ends with it."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # a command that is killed must not leave load on a server.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent_pid:
            # with our own end open, nobody's absence would show.
            os.close(read_end)
            _redirect(write_end, log)
            from pdwatch.loadgen.drive import main

            status = main(arguments)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _redirect(write_end: int, log: Path) -> None:
    talk = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (write_end, 1), (talk, 2)):
        os.dup2(source, standard)
        os.close(source)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)


def _wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _stop(pid: int, pipe: int) -> None:
    """End the copy and wait for it, ten seconds at most. What it still tells is read, so that it does not block."""
    os.kill(pid, signal.SIGTERM)
    process = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(process, select.POLLIN)
        poller.register(pipe, select.POLLIN)
        until_seconds = time.monotonic() + STOP_SECONDS
        while (left_seconds := until_seconds - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poller.poll(left_seconds * 1000)}
            if process in ready:
                break
            if pipe in ready and not os.read(pipe, 65_536):
                poller.unregister(pipe)
        else:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(process)
        _wait(pid)
