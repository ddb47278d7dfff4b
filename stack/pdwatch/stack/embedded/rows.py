"""Persistent row buffers of the decode batch: what a step reads, at addresses that never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.sequence import SequenceState
from pdwatch.stack.embedded.tokens import PAD


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """One decode step's inputs for `batch` rows.

    grams        [batch, ngram]  int64, the last tokens, newest first
    lengths      [batch]         int64, tokens of the row including the newest
    write_slots  [batch]         int64, pool slot of the newest token's KV
    block_table  [batch, width]  int64, page ids
    index_table  [batch, width]  int64, page ids through which the indexer reads; the block table itself, as a rule
    """

    grams: Tensor
    lengths: Tensor
    write_slots: Tensor
    block_table: Tensor
    index_table: Tensor

    def with_index_table(self, table: Tensor) -> DecodeInputs:
        """The same inputs with another table for the indexer."""
        return replace(self, index_table=table)


class DecodeRows:
    """Rows 0..batch-1 are the running requests, without holes; the rest is padding.

    The block table lives on the device and is updated entry by entry. Entries past a row's pages are what the row's
    earlier tenants left there: nothing reads them, as long as every new page is entered.
    """

    def __init__(self, config: EngineConfig, ngram: int) -> None:
        rows, device = config.max_running_requests, config.device
        self.block_table = torch.zeros(rows, config.pages_per_request, dtype=torch.int64, device=device)
        # columns: ngram tokens, length, write slot. A zero row is padding: page 0, length 0.
        self._inputs = torch.zeros(rows, ngram + 2, dtype=torch.int64, device=device)
        self._ngram = ngram
        self._page_size = config.page_size

    def enter(self, row: int, pages: Sequence[int]) -> None:
        """A request takes the row with its pages."""
        self.block_table[row, : len(pages)] = torch.tensor(pages, device=self.block_table.device)

    def append_page(self, row: int, index: int, page: int) -> None:
        """Page `index` of the row's request is now `page`."""
        self.block_table[row, index] = page

    def move(self, source: int, target: int) -> None:
        """The request of row `source` moves to row `target`, whose request has left."""
        self.block_table[target] = self.block_table[source]

    def stage(self, running: Sequence[SequenceState], padded: int) -> None:
        """Copies one step's tokens, lengths and write slots in, padding up to `padded` rows."""
        batch = len(running)
        inputs = [self._row(sequence) for sequence in running]
        self._inputs[:batch].copy_(torch.tensor(inputs, dtype=torch.int64))
        self._inputs[batch:padded].zero_()

    def _row(self, sequence: SequenceState) -> list[int]:
        tokens = sequence.tokens
        last, size = len(tokens) - 1, self._page_size
        newest = [tokens[last - back] if back <= last else PAD for back in range(self._ngram)]
        return [*newest, len(tokens), sequence.pages[last // size] * size + last % size]

    def view(self, batch: int, width: int) -> DecodeInputs:
        """Views of the first `batch` rows and `width` page entries."""
        table = self.block_table[:batch, :width]
        return DecodeInputs(
            grams=self._inputs[:batch, : self._ngram],
            lengths=self._inputs[:batch, self._ngram],
            write_slots=self._inputs[:batch, self._ngram + 1],
            block_table=table,
            index_table=table,
        )
