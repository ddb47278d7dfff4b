"""Two rows of the batch get each other's sampled token."""

from __future__ import annotations

from pdwatch.stack.embedded.faults.base import Fault


class SamplerRowsSwapped(Fault):
    """Happens at some steps, as when a batch is reordered between its forward pass and its sampling."""

    name = "sampler_rows_swapped"
    where = "decode worker, sampler: rows of the sampled tokens"
    signature = "garbled"
    description = "at some steps two requests receive each other's token"

    # a share of rows, so that a request is hit about as often in a small batch as in a large one.
    rate_per_row = 0.003

    def sampled(self, tokens: list[int]) -> list[int]:
        if len(tokens) < 2:
            return tokens
        swapped = list(tokens)
        for row in range(len(tokens)):
            if self.random.random() < self.rate_per_row:
                other = self.random.choice([candidate for candidate in range(len(tokens)) if candidate != row])
                swapped[row], swapped[other] = swapped[other], swapped[row]
        return swapped
