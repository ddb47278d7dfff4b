"""Received calls matched to expected ones, and values compared without mercy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.optimize import linear_sum_assignment

_ABSENT = object()
_WRONG_NAME = 1_000


@dataclass(frozen=True, slots=True)
class FieldMismatch:
    """A field whose value is not the planted one; `path` is like `$.tags[1]`."""

    path: str
    expected: Any
    received: Any

    @property
    def missing(self) -> bool:
        return self.received is _ABSENT

    @property
    def unexpected(self) -> bool:
        return self.expected is _ABSENT


def exactly_equal(left: Any, right: Any) -> bool:
    """Equal in value and in JSON type: `1`, `1.0` and `true` are three different values."""
    return not mismatches(left, right)


def mismatches(expected: Any, received: Any, path: str = "$") -> list[FieldMismatch]:
    """Every place where `received` is not exactly `expected`; its depth was limited when it was parsed."""
    if isinstance(expected, Mapping) and isinstance(received, Mapping):
        found = []
        for key in [*expected, *(key for key in received if key not in expected)]:
            found += mismatches(expected.get(key, _ABSENT), received.get(key, _ABSENT), f"{path}.{key}")
        return found
    if isinstance(expected, (list, tuple)) and isinstance(received, (list, tuple)):
        if len(expected) != len(received):
            return [FieldMismatch(path, expected, received)]
        pairs = enumerate(zip(expected, received, strict=True))
        return [found for index, (left, right) in pairs for found in mismatches(left, right, f"{path}[{index}]")]
    same = type(expected) is type(received) and expected == received
    return [] if same else [FieldMismatch(path, expected, received)]


def assign(
    expected: Sequence[tuple[str, Mapping[str, Any]]],
    received: Sequence[tuple[str, Mapping[str, Any] | None]],
) -> list[tuple[int | None, int | None]]:
    """Pairs of expected and received positions, None for a call without a partner.

    Minimum-cost bipartite matching: a wrong name costs most, then each wrong field, and a step out of order least of
    all, so that calls in order keep their order.
    """
    if not expected or not received:
        return [*((index, None) for index in range(len(expected))), *((None, index) for index in range(len(received)))]
    scale = len(expected) * len(received) + 1
    cost = [
        [_distance(want, got) * scale + abs(row - column) for column, got in enumerate(received)]
        for row, want in enumerate(expected)
    ]
    rows, columns = linear_sum_assignment(cost)
    pairs: list[tuple[int | None, int | None]] = [
        (int(row), int(column)) for row, column in zip(rows, columns, strict=True)
    ]
    matched_rows, matched_columns = {row for row, _ in pairs}, {column for _, column in pairs}
    pairs += [(index, None) for index in range(len(expected)) if index not in matched_rows]
    pairs += [(None, index) for index in range(len(received)) if index not in matched_columns]
    return pairs


def _distance(want: tuple[str, Mapping[str, Any]], got: tuple[str, Mapping[str, Any] | None]) -> int:
    wrong_name = 0 if want[0] == got[0] else _WRONG_NAME
    if got[1] is None:
        return wrong_name + len(want[1]) + 1
    return wrong_name + min(len(mismatches(want[1], got[1])), _WRONG_NAME - 1)
