"""Runs the load generator as a process of its own (gevent patches everything) and relays what it tells."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from pdwatch.gate.errors import LoadFailed

MODULE = "pdwatch.loadgen.drive"
POLL_SECONDS = 0.2
STOP_SECONDS = 10.0

Event = Mapping[str, Any]


def drive(
    plan: Path,
    directory: Path,
    log: Path,
    relay: Callable[[Event], None],
    check: Callable[[], None] | None,
    *,
    module: str | None = None,
    arguments: Sequence[str] = (),
) -> None:
    """Run all phases of `plan`; transcripts go to `directory`, talk to `log`.

    `module` is the load generator (`MODULE` by default), which gets `arguments` too.

    `relay` gets each progress event; `check`, where there is one, is called five times a second and may
    raise, which ends the load generator first. Raises LoadFailed when it ends by itself before all phases have run.
    """
    # loading the deployment's portion takes longer than all that is before it.
    from pdwatch.stack import launch

    program = [sys.executable, "-P", "-m", module or MODULE, "--plan", str(plan), "--out", str(directory), *arguments]
    # the wrapper ties its life to ours: a gate that is killed must not leave load on a deployment
    command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *program]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as talk:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=talk)
    assert process.stdout is not None
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_pump, args=(process.stdout, lines), name="drive-reader", daemon=True)
    reader.start()
    try:
        _relay_all(lines, relay, check)
        exit_code = process.wait()
    finally:
        _stop(process)
        reader.join()
        process.stdout.close()
    check_exit(exit_code, log)


def check_exit(exit_code: int, log: Path) -> None:
    """Raise LoadFailed, with the last line of its log, for a load generator that did not end with 0."""
    if exit_code == 0:
        return
    from pdwatch.stack.errors import describe_exit
    from pdwatch.stack.processes import last_log_line

    said = last_log_line(log) or "it logged nothing"
    raise LoadFailed(f"load generator {describe_exit(exit_code)}: {said.removeprefix('loadgen: ')} (log: {log})")


def _relay_all(
    lines: queue.SimpleQueue[bytes | None], relay: Callable[[Event], None], check: Callable[[], None] | None
) -> None:
    while True:
        if check is not None:
            check()
        try:
            line = lines.get(timeout=None if check is None else POLL_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            return
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            # a library's stray print must not end a run
            continue
        if isinstance(event, dict):
            relay(event)


def _pump(stdout: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    for line in stdout:
        lines.put(line)
    lines.put(None)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
