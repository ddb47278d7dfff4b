"""A kernel of one's own under the harness, in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.kernel import (
    ALL_PROMISES,
    Buffers,
    Case,
    Expected,
    Family,
    Inputs,
    KernelUnderTest,
    Kind,
    Outputs,
    Promise,
    Tolerance,
)

# rows of the batch of the cases; the largest is the one with random inputs
_ROWS = (37, 16, 1, 2, 3, 7)
_BUCKETS = (8, 3)
_REPLAYS = 6


def custom(
    name: str,
    *,
    run: Callable[..., Tensor | Mapping[str, Tensor]],
    reference: Callable[..., Tensor | Mapping[str, Tensor]],
    inputs: Callable[[int, torch.Generator], Mapping[str, Any]],
    tolerance: Tolerance | Mapping[str, Tolerance],
    batched: Sequence[str] | Mapping[str, int],
    adversarial: Callable[[torch.Generator], Iterable[tuple[str, Mapping[str, Any]]]] | None = None,
    promises: frozenset[Promise] = ALL_PROMISES,
    devices: tuple[str, ...] = ("cpu", "cuda"),
    operators_only: bool = False,
) -> KernelUnderTest:
    """A kernel told by functions of its arguments.

    run          called with the inputs by name; returns a tensor, or tensors by name, rows first
    reference    the same formula; called with every floating-point tensor in float64
    inputs       (rows, generator) -> arguments by name; tensors are made on the CPU and moved
    tolerance    for the result, or for each by name, with its reason
    batched      names of the inputs that have a batch axis (0, or the axis by name)
    adversarial  further inputs with a name: extremes, empty rows, equal values
    operators_only  all work goes through PyTorch operators: capture and replay can be tried without a GPU
    """
    tolerances = {"result": tolerance} if isinstance(tolerance, Tolerance) else dict(tolerance)

    def computed(arguments: Inputs, buffers: Buffers | None) -> Outputs:
        return _named(run(**arguments))

    def expected(arguments: Inputs) -> dict[str, Expected]:
        return {key: Expected(value) for key, value in _named(reference(**_exact(arguments))).items()}

    def cases(seed: int, device: torch.device) -> Iterator[Case]:
        generator = torch.Generator().manual_seed(seed)
        for rows in _ROWS:
            kind = Kind.RANDOM if rows == _ROWS[0] else Kind.ODD
            yield Case(f"{rows} rows", kind, _moved(inputs(rows, generator), device))
        for words, arguments in adversarial(generator) if adversarial is not None else ():
            yield Case(words, Kind.ADVERSARIAL, _moved(arguments, device))

    def replays(seed: int, device: torch.device) -> list[list[Case]]:
        generator = torch.Generator().manual_seed(seed + 77)
        return [
            [
                Case(f"{rows} rows, values {turn}", Kind.RANDOM, _moved(inputs(rows, generator), device))
                for turn in range(_REPLAYS)
            ]
            for rows in _BUCKETS
        ]

    return KernelUnderTest(
        name=name,
        family=Family.CUSTOM,
        run=computed,
        reference=expected,
        cases=cases,
        tolerances=tolerances,
        batched=dict(batched) if isinstance(batched, Mapping) else dict.fromkeys(batched, 0),
        replays=replays,
        promises=promises - {Promise.ALLOCATES_NOTHING, Promise.ANY_WORKSPACE},
        devices=devices,
        operators_only=operators_only,
    )


def _named(result: Tensor | Mapping[str, Tensor]) -> Outputs:
    return {"result": result} if isinstance(result, Tensor) else dict(result)


def _exact(arguments: Inputs) -> dict[str, Any]:
    return {
        name: value.to(torch.float64) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def _moved(arguments: Inputs, device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}
