"""Run a program that dies with its parent: ``python launch.py PARENT_PID PROGRAM [ARGUMENT ...]``.

Run as a file, without the package, so that the wrapper costs some 20 ms per process. The death signal belongs to the
thread that started the process and outlives ``exec``; it reaches this process only, not what that starts in turn.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# from linux/prctl.h
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Ask the kernel for SIGKILL at the parent's death, then become the program."""
    parent_pid, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    # a parent that died before the call above never sends the signal
    if os.getppid() != parent_pid:
        sys.exit(f"parent {parent_pid} is gone")
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"cannot run {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
