"""Muon: orthogonalised momentum for a network's hidden matrices.

After Keller Jordan's description (kellerjordan.github.io/posts/muon, 2024): the update is the momentum with its
singular values pushed towards one by five Newton–Schulz steps, here scaled to the size of AdamW's updates.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# coefficients of the quintic iteration, from the same source.
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
ITERATIONS = 5


class Muon:
    """Optimizer of matrices; those of one shape are orthogonalised as one batch."""

    def __init__(self, parameters: Iterable[Tensor], momentum: float = 0.95) -> None:
        self._momentum = momentum
        self._groups: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in parameters:
            self._groups.setdefault(tuple(sorted(parameter.shape)), []).append(parameter)
        self._averages: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def step(self, rate: float, decay: float) -> None:
        """Move each matrix by `rate`, after shrinking it by rate × decay."""
        for shape, parameters in self._groups.items():
            gradient = torch.stack([_wide(parameter.grad) for parameter in parameters if parameter.grad is not None])
            average = self._averages.setdefault(shape, torch.zeros_like(gradient))
            average.lerp_(gradient, 1 - self._momentum)
            update = _orthogonal(gradient.lerp(average, self._momentum))
            scaled = (update * (-rate * 0.2 * max(shape) ** 0.5)).unbind()
            torch._foreach_mul_(parameters, 1 - rate * decay)
            for parameter, change in zip(parameters, scaled, strict=True):
                parameter.add_(change if parameter.shape[0] <= parameter.shape[1] else change.T)

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for parameters in self._groups.values():
            for parameter in parameters:
                parameter.grad = None


def _wide(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def _orthogonal(matrices: Tensor) -> Tensor:
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = LINEAR * x + (CUBIC * square + QUINTIC * (square @ square)) @ x
    return torch.as_tensor(x, dtype=torch.float32)
