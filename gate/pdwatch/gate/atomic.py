"""Files that are either whole or absent, whenever the process is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk, then rename it over `path`.

    Readers see the old content or the new one, never a part. On an error the temporary file is
    removed and the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replace the content of `path` as a whole."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)
