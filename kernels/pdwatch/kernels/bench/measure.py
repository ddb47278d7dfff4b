"""Measures cases one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from pdwatch.kernels.bench.cases import Case, MlaCase
from pdwatch.kernels.bench.errors import Unsuitable
from pdwatch.kernels.bench.indexer import IndexerProblem
from pdwatch.kernels.bench.mla import MlaProblem, Pools
from pdwatch.kernels.bench.problem import OURS, Problem
from pdwatch.kernels.bench.timing import Timer

Opener = Callable[[Case], Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case, measured.

    least_bytes   bytes that must move, once each
    operations    multiplications and additions of the matrix products
    microseconds  median by implementation
    differences   result of an implementation against ours, see `Problem.difference`
    absent        why an implementation has no time
    """

    family: str
    case: str
    batch: int
    context: int
    maximum_context: int
    least_bytes: int
    operations: int
    microseconds: dict[str, float] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def measure(cases: Iterable[Case], timer: Timer, open_problem: Opener) -> Iterator[Row]:
    """A row for each case, as soon as it is measured. A fault of our kernel is raised, a peer's is noted."""
    for case in cases:
        row = Row(
            family=case.family.value,
            case=case.name,
            batch=case.batch,
            context=case.context,
            maximum_context=0 if isinstance(case, MlaCase) else case.maximum_context,
            least_bytes=case.least_bytes,
            operations=case.operations,
        )
        _fill(row, open_problem(case), timer)
        yield row


def opener(device: str) -> Opener:
    """Makes the inputs of a case on `device`."""
    pools = Pools(device)
    return partial(_open, device, pools)


def _open(device: str, pools: Pools, case: Case) -> Problem:
    return MlaProblem(case, pools) if isinstance(case, MlaCase) else IndexerProblem(case, device)


def _fill(row: Row, problem: Problem, timer: Timer) -> None:
    ours = None
    for name, make in problem.implementations.items():
        try:
            calls = make()
            result = calls[0]()
            assert isinstance(result, torch.Tensor)
            if ours is None:
                # the next call writes into the same buffer
                ours = result.clone()
            else:
                row.differences[name] = problem.difference(ours, result)
            row.microseconds[name] = timer(calls)
        except Unsuitable as error:
            row.absent[name] = str(error)
        except ImportError as error:
            if name == OURS:
                raise
            row.absent[name] = f"cannot be imported here: {error}"
        except Exception as error:
            if name == OURS:
                raise
            row.absent[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
