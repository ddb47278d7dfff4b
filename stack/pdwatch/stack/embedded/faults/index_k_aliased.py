"""Index-K rows of one request, read through another request's page table."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pdwatch.stack.embedded.faults.base import Fault


class IndexKeyAliased(Fault):
    """The alias of a row lasts one step: enough to copy a wrong byte of a value, too short to end in gibberish."""

    name = "index_k_aliased"
    where = "decode worker, indexer: gather of index-K by the page table"
    signature = "wrong_value"
    description = "at some steps the indexer scores one request's positions with another request's index keys"

    # a share of rows, so that a request is hit about as often in a small batch as in a large one.
    rate_per_row = 0.008

    def index_table(self, table: Tensor, rids: Sequence[str]) -> Tensor:
        batch = len(rids)
        if batch < 2:
            return table
        rows = [(row + 1) % batch if self.random.random() < self.rate_per_row else row for row in range(batch)]
        return table[rows]
