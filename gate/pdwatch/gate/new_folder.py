"""Folders for runs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pdwatch.gate.errors import RunFolderError


def new_folder(path: Path | None, name: str, now: datetime) -> Path:
    """An empty folder, made: `path`, or `runs/<UTC time>-<name>` with a number when that is there already.

    Raises RunFolderError when the path exists and is not an empty directory, or cannot be made.
    """
    wanted = path if path is not None else Path("runs") / f"{now.strftime('%Y%m%dT%H%M%SZ')}-{name}"
    try:
        return _make(wanted, may_exist=path is not None)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunFolderError(f"cannot create run folder `{wanted}`: {reason}; choose another with --out") from error


def _make(wanted: Path, may_exist: bool) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if may_exist:
        wanted.mkdir(exist_ok=True)
        if any(wanted.iterdir()):
            raise OSError(None, "it exists and is not empty")
        return wanted
    for number in range(1, 1_000):
        candidate = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise OSError(None, "a thousand runs began in the same second")
