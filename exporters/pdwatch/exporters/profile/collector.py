"""The last profile of each target, and what it is compared with, as metrics."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Metric

from ..definitions import Families
from ..errors import CollectionFailed, HistoryInvalid
from ..field_errors import FieldErrors
from . import definitions as defined
from .history import History, HistoryFile
from .profile import Profile
from .schedule import Schedule


class ProfileSource:
    """The kernel profile exporter's source of metrics: the history, and the schedule that adds to it, if any."""

    def __init__(self, history: HistoryFile, schedule: Schedule | None = None) -> None:
        self.field_errors = FieldErrors()
        self._history = history
        self._schedule = schedule
        if schedule is not None:
            schedule.start()

    def collect(self) -> Sequence[Metric]:
        """Read what is new in the history. Raises CollectionFailed when it cannot be read."""
        families = Families(defined.DEFINITIONS)
        try:
            history = self._history.read()
        except HistoryInvalid as error:
            raise CollectionFailed(str(error)) from error
        if history.damaged:
            self.field_errors.note("history_line", "invalid")
        for profile in history.latest():
            _add(families, history, profile)
        if self._schedule is not None:
            for key, count in self._schedule.outcomes().items():
                families.add(defined.CAPTURES, count, key)
        return families.built()

    def close(self) -> None:
        """Stop the schedule."""
        if self._schedule is not None:
            self._schedule.stop()


def _add(families: Families, history: History, profile: Profile) -> None:
    series = (profile.target, profile.rank)
    for group, time in profile.groups.items():
        labels = (*series, group)
        families.add(defined.SHARE, time.share, labels)
        for definition, value in (
            (defined.GROUP_SECONDS, time.step_seconds),
            (defined.BUSY_SECONDS, time.busy_step_seconds),
            (defined.LAUNCHES, time.launches_per_step),
        ):
            if value is not None:
                families.add(definition, value, labels)
    for group, share in history.baseline(series).items():
        families.add(defined.BASELINE, share, (*series, group))
    if profile.steps is not None:
        steps = profile.steps
        families.add(defined.STEPS, steps.count, (*series, profile.boundary, steps.stage))
        for stat, seconds in (
            ("mean", steps.mean_seconds),
            ("p50", steps.p50_seconds),
            ("p99", steps.p99_seconds),
        ):
            families.add(defined.STEP_SECONDS, seconds, (*series, stat))
        if steps.mean_batch is not None:
            families.add(defined.BATCH, steps.mean_batch, series)
    families.add(defined.OVERLAP, profile.overlap, series)
    families.add(defined.TIMESTAMP, profile.unix_seconds, series)
    families.add(defined.KEPT, len(history.profiles[series]), series)
