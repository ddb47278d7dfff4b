"""Data on stdout, whoever reads it."""

from __future__ import annotations

import os
import sys


def write_out(text: str) -> None:
    """Write to stdout. A reader that has gone away has seen enough, which changes no exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes stdout once more when it ends
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
