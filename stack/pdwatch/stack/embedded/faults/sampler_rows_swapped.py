"""Two rows of the batch get each other's sampled token."""

from __future__ import annotations

from pdwatch.stack.embedded.faults.base import Fault


class SamplerRowsSwapped(Fault):
    """Lasts some steps, as when a batch stays reordered between its forward pass and its sampling."""

    name = "sampler_rows_swapped"
    where = "decode worker, sampler: rows of the sampled tokens"
    signature = "garbled"
    description = "for some steps two requests receive each other's tokens"

    # a share of rows, so that a request is hit about as often in a small batch as in a large one.
    rate_per_row = 0.002
    steps = 6

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._pair = (0, 0)
        self._left = 0

    def sampled(self, tokens: list[int]) -> list[int]:
        if len(tokens) < 2:
            return tokens
        if not self._left and self.random.random() < self.rate_per_row * len(tokens):
            row, other = self.random.sample(range(len(tokens)), 2)
            self._pair, self._left = (row, other), self.steps
        if not self._left:
            return tokens
        self._left -= 1
        row, other = self._pair
        if max(row, other) >= len(tokens):
            return tokens
        swapped = list(tokens)
        swapped[row], swapped[other] = swapped[other], swapped[row]
        return swapped
