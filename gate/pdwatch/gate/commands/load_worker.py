"""`pdwatch load-worker`: one driver of a run that another machine leads."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

MODULE = "pdwatch.loadgen.scale.agent"
DEFAULT_PORT = 5557


def load_worker(
    master: Annotated[
        str, typer.Argument(metavar="HOST[:PORT]", help="Where `pdwatch load --expect-workers` waits. (port 5557)")
    ],
    bearer_token_environment: Annotated[
        str | None,
        typer.Option(
            "--bearer-token-env",
            "--bearer-token-environment",
            metavar="VARIABLE",
            help="Environment variable with the bearer token, here.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for what is recorded. (default runs/<UTC time>-worker)")
    ] = None,
) -> None:
    """Drive a share of the load that `pdwatch load --expect-workers N` leads, and send it what was recorded.

    The plan comes from there; a token comes from this machine's environment.

    Exit codes: 0 the run is over, 1 it broke off, 3 it could not begin.

    Example:

      pdwatch load-worker 10.0.0.7:5557
    """
    from datetime import UTC, datetime

    from pdwatch.gate.errors import OptionError
    from pdwatch.gate.new_folder import new_folder

    host, colon, port = master.rpartition(":") if master.count(":") == 1 else (master, "", "")
    if not host or (colon and not port.isdecimal()):
        raise OptionError(f"`{master}` is no address: write it as HOST or HOST:PORT")
    folder = new_folder(out, "worker", datetime.now(UTC))
    options = ["--master-host", host, "--master-port", port or str(DEFAULT_PORT), "--out", str(folder)]
    if bearer_token_environment is not None:
        options += ["--bearer-token-environment", bearer_token_environment]
    sys.stdout.flush()
    # the driver is this process from here on: signals and the exit status are its own.
    os.execv(sys.executable, [sys.executable, "-P", "-m", MODULE, *options])
