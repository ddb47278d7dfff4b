"""The rows of a user's file: checked once, found by an index, read one at a time.

Only the index is kept in memory (20 bytes a row), so a file may be far larger than that.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
import weakref
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

from ..errors import PlanError
from ..plan import SEQUENCE_SPAN
from .config import Order

MOST_ROW_BYTES: Final = 64 * 2**20

# a whole string, or one bracket. Possessive, and an open string runs to the end: each byte is looked at once.
_JSON_STEPS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_OPENING: Final = frozenset(b"{[")
_CLOSING: Final = frozenset(b"}]")

#: Takes a row's JSON value; False leaves the row out, ValueError says what is wrong with it.
Accept = Callable[[Any], bool]


class Rows:
    """The accepted rows of one file, which stays open."""

    def __init__(self, path: Path, place: str, descriptor: int) -> None:
        self.path = path
        self._place = place
        self._descriptor = descriptor
        self._starts = array("Q")
        self._sizes = array("Q")
        self._numbers = array("I")
        weakref.finalize(self, os.close, descriptor)

    def __len__(self) -> int:
        return len(self._starts)

    def number(self, index: int) -> int:
        """The row's place in the file, counted from 1."""
        return self._numbers[index]

    def value(self, index: int) -> Any:
        """The row's JSON value. Raises PlanError when the file is no longer what it was."""
        start, size = self._starts[index], self._sizes[index]
        try:
            return orjson.loads(os.pread(self._descriptor, size, start))
        except (OSError, orjson.JSONDecodeError) as error:
            raise self._wrong(self._numbers[index], f"changed while it was in use ({error})") from None

    def take(self, number: int, start: int, data: bytes, accept: Accept) -> None:
        """Check one row and keep its place. Raises PlanError that names the file and the row."""
        if len(data) > MOST_ROW_BYTES:
            raise self._wrong(number, f"is longer than {MOST_ROW_BYTES // 2**20} MiB; shorten or remove it")
        try:
            value = orjson.loads(data)
            is_accepted = accept(value)
            # what can be read may still nest too deep to be written.
            orjson.dumps(value)
        except orjson.JSONDecodeError as error:
            raise self._wrong(number, f"is not JSON that can be used ({error}); mend or remove it") from None
        except (RecursionError, orjson.JSONEncodeError):
            raise self._wrong(number, "nests too deep; flatten or remove it") from None
        except ValueError as error:
            raise self._wrong(number, str(error)) from None
        if is_accepted:
            self._starts.append(start)
            self._sizes.append(len(data))
            self._numbers.append(number)

    def _wrong(self, number: int, complaint: str) -> PlanError:
        return PlanError(f"{self.path}: {self._place} {number} {complaint}")


class Deck:
    """Which row each request takes."""

    def __init__(self, rows: int, order: Order, seed: int) -> None:
        self._rows = rows
        self._order = order
        source = Random(f"{seed}/rows/{rows}")
        self._offset = source.randrange(rows)
        self._step = 1
        while rows > 2:
            self._step = source.randrange(1, rows)
            if math.gcd(self._step, rows) == 1:
                break

    def index(self, number: int) -> int:
        """The row of request `number`; as many consecutive numbers as there are rows take each row once."""
        if self._order == "file":
            return number % SEQUENCE_SPAN % self._rows
        return (number * self._step + self._offset) % self._rows


def open_lines(path: Path, accept: Accept) -> Rows:
    """The rows of a JSONL file; empty lines do not count as rows. Raises PlanError with the remedy."""
    descriptor = _open(path)
    rows = Rows(path, "line", descriptor)
    start = 0
    with open(descriptor, "rb", closefd=False) as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_ROW_BYTES + 1), b""), start=1):
            data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not data.isspace():
                rows.take(number, start + len(line) - len(data), data, accept)
            start += len(line)
    return _some(rows)


def open_array_or_lines(path: Path, accept: Accept) -> Rows:
    """The objects of a file's one JSON array, or its lines where it does not begin as an array."""
    descriptor = _open(path)
    opening = os.pread(descriptor, 4096, 0).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not opening.startswith(b"["):
        os.close(descriptor)
        return open_lines(path, accept)
    rows = Rows(path, "element", descriptor)
    data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    for number, (start, end) in enumerate(_elements(data, path), start=1):
        rows.take(number, start, data[start : min(end, start + MOST_ROW_BYTES + 1)], accept)
    return _some(rows)


def _elements(data: mmap.mmap, path: Path) -> Iterator[tuple[int, int]]:
    """Where the objects in the outermost array stand."""
    depth, start = 0, 0
    for step in _JSON_STEPS.finditer(data):
        position = step.start()
        byte = data[position]
        if byte in _OPENING:
            if depth == 1:
                start = position
            depth += 1
        elif byte in _CLOSING:
            depth -= 1
            if depth == 1:
                yield start, step.end()
    if depth:
        raise PlanError(f"{path}: its JSON array does not end; give the whole file")


def _open(path: Path) -> int:
    try:
        # a FIFO would hold the run up for ever, a folder has no lines; links are followed.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise PlanError(f"source file {path} is a folder or a device; give the path of a file")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"source file {path} cannot be read ({reason}); give the path of a file") from None


def _some(rows: Rows) -> Rows:
    if not len(rows):
        raise PlanError(f"{rows.path}: no row of it can be sent; give a file with at least one")
    return rows
