"""What the problems of all families have in common: implementations by name, over rotated inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from pdwatch.kernels.bench.timing import Call

OURS = "pdwatch"
EAGER = "eager"


class Problem(Protocol):
    """Inputs of one case on a device."""

    @property
    def implementations(self) -> Mapping[str, Callable[[], list[Call]]]:
        """Makers of calls by name, ours first: one call for each set of inputs, in the same order.

        A call returns the tensor that `difference` compares. A maker raises ImportError where its package is missing
        and Unsuitable where it does not take the case.
        """
        ...

    def difference(self, ours: Tensor, theirs: Tensor) -> float:
        """How far two results of the first set are apart, 0 for equal."""
        ...


def rotation(bytes_per_set: int, most: int = 32) -> int:
    """Sets of inputs of one case: enough that a launch does not count, and at most a GiB."""
    return max(3, min(most, (1 << 30) // max(bytes_per_set, 1)))
