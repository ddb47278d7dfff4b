"""Profiles of months as lines of JSON, appended one by one: what `the indexer went from 1 % to 69 %` is read from.

The file is the interface between `pdwatch export profile --once` or `--file` and the exporter that serves: whoever
takes a profile appends it, whoever serves reads what is new.
"""

from __future__ import annotations

import fcntl
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from ..errors import HistoryInvalid
from .profile import Profile

DEFAULT_KEPT: Final = 500
# the median of this many profiles before the last is what the last is compared with
BASELINE_PROFILES: Final = 20
FEWEST_FOR_BASELINE: Final = 3
_LONGEST_LINE_BYTES: Final = 1 << 20
_LARGEST_BYTES: Final = 512 << 20

Series = tuple[str, str]


@dataclass(frozen=True, slots=True)
class History:
    """Profiles by target and rank, oldest first. `damaged` lines could not be read and are not among them."""

    profiles: Mapping[Series, Sequence[Profile]]
    damaged: int

    def latest(self) -> list[Profile]:
        """The last profile of each series."""
        return [profiles[-1] for _, profiles in sorted(self.profiles.items())]

    def baseline(self, series: Series) -> dict[str, float]:
        """Median share by group before the last profile; empty when too few were taken."""
        before = self.profiles.get(series, ())[-BASELINE_PROFILES - 1 : -1]
        if len(before) < FEWEST_FOR_BASELINE:
            return {}
        groups = set.intersection(*(set(profile.groups) for profile in before))
        return {group: statistics.median(profile.groups[group].share for profile in before) for group in sorted(groups)}


class HistoryFile:
    """The history in a file. An append that finds more than twice `kept` profiles of a series leaves it `kept`."""

    def __init__(self, path: Path, kept: int = DEFAULT_KEPT) -> None:
        self.path = path
        self._kept = kept
        self._read: tuple[tuple[int, int, int], History] | None = None

    def append(self, profiles: Iterable[Profile]) -> None:
        """Append profiles; each is on disk whole or not at all. Raises HistoryInvalid."""
        lines = "".join(profile.model_dump_json() + "\n" for profile in profiles)
        with self._locked():
            try:
                with self.path.open("ab+") as file:
                    if file.tell() and not self._ends_with_newline():
                        # a process was killed in the midst of its line; ours must not become part of it
                        lines = "\n" + lines
                    file.write(lines.encode())
                    file.flush()
                    os.fsync(file.fileno())
                self._prune()
            except OSError as error:
                raise self._unusable(error) from error

    def read(self) -> History:
        """All profiles. A file that is not there holds none. Raises HistoryInvalid."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return History({}, 0)
        except OSError as error:
            raise self._unusable(error) from error
        if status.st_size > _LARGEST_BYTES:
            raise HistoryInvalid(f"the history {self.path} has more than {_LARGEST_BYTES >> 20} MiB: move it away")
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._read is None or self._read[0] != seen:
            self._read = (seen, self._parse())
        return self._read[1]

    def _parse(self) -> History:
        profiles: dict[Series, list[Profile]] = {}
        damaged = 0
        try:
            with self.path.open("rb") as file:
                while line := file.readline(_LONGEST_LINE_BYTES):
                    if not line.endswith(b"\n") and len(line) < _LONGEST_LINE_BYTES:
                        # a line that is being written, or never was to its end
                        break
                    if not line.strip():
                        continue
                    try:
                        profile = Profile.model_validate_json(line)
                    except ValidationError:
                        damaged += 1
                        continue
                    profiles.setdefault((profile.target, profile.rank), []).append(profile)
        except OSError as error:
            raise self._unusable(error) from error
        for found in profiles.values():
            found.sort(key=lambda profile: profile.unix_seconds)
        return History(profiles, damaged)

    def _prune(self) -> None:
        """Rewrite the file with what is to be kept, once the rest is as much again."""
        history = self._parse()
        if all(len(found) <= 2 * self._kept for found in history.profiles.values()):
            return
        kept = [profile for found in history.profiles.values() for profile in found[-self._kept :]]
        kept.sort(key=lambda profile: profile.unix_seconds)
        new = self.path.with_name(self.path.name + ".new")
        with new.open("wb") as file:
            file.writelines(profile.model_dump_json().encode() + b"\n" for profile in kept)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def _ends_with_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time; the lock has a file of its own, since the history's is replaced."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(self.path.name + ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> HistoryInvalid:
        reason = error.strerror or str(error)
        return HistoryInvalid(f"the history {self.path} cannot be used: {reason}; choose another with --history")
