"""The kernels an engine calls, as one replaceable table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pdwatch.kernels._attention import sparse_mla_decode, sparse_mla_prefill
from pdwatch.kernels._indexer import indexer_logits, indexer_logits_prefill
from pdwatch.kernels._topk import select_topk


class IndexerLogits(Protocol):
    """See `indexer_logits`."""

    def __call__(
        self, query: Tensor, key_pages: Tensor, weights: Tensor, block_table: Tensor, lengths: Tensor, window: int
    ) -> Tensor: ...


class IndexerLogitsPrefill(Protocol):
    """See `indexer_logits_prefill`."""

    def __call__(self, query: Tensor, key: Tensor, weights: Tensor, lengths: Tensor, window: int) -> Tensor: ...


class SelectTopk(Protocol):
    """See `select_topk`."""

    def __call__(self, logits: Tensor, count: int) -> Tensor: ...


class SparseMlaDecode(Protocol):
    """See `sparse_mla_decode`."""

    def __call__(
        self,
        query: Tensor,
        latent_pages: Tensor,
        block_table: Tensor,
        selected: Tensor,
        lengths: Tensor,
        sink: Tensor,
        window: int,
        scale: float,
    ) -> tuple[Tensor, Tensor]: ...


class SparseMlaPrefill(Protocol):
    """See `sparse_mla_prefill`."""

    def __call__(
        self, query: Tensor, latent: Tensor, selected: Tensor, lengths: Tensor, sink: Tensor, window: int, scale: float
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One implementation of every kernel. A backend is a table; the engine never names a backend's functions."""

    name: str
    indexer_logits: IndexerLogits
    indexer_logits_prefill: IndexerLogitsPrefill
    select_topk: SelectTopk
    sparse_mla_decode: SparseMlaDecode
    sparse_mla_prefill: SparseMlaPrefill


_TABLES = {
    table.name: table
    for table in (
        KernelTable(
            name="eager",
            indexer_logits=indexer_logits,
            indexer_logits_prefill=indexer_logits_prefill,
            select_topk=select_topk,
            sparse_mla_decode=sparse_mla_decode,
            sparse_mla_prefill=sparse_mla_prefill,
        ),
    )
}


def kernel_table(name: str) -> KernelTable:
    """The table called `name`. Raises UnknownKernels."""
    if name not in _TABLES:
        raise UnknownKernels(f"kernels `{name}` do not exist, use one of: {', '.join(sorted(_TABLES))}")
    return _TABLES[name]


class UnknownKernels(ValueError):
    """No kernel table has this name."""
