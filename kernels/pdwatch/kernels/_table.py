"""The kernels an engine calls, as one replaceable table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
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
    """One implementation of every kernel. A backend is a table; the engine never names a backend's functions.

    `devices` are the types of device whose tensors it takes.
    """

    name: str
    indexer_logits: IndexerLogits
    indexer_logits_prefill: IndexerLogitsPrefill
    select_topk: SelectTopk
    sparse_mla_decode: SparseMlaDecode
    sparse_mla_prefill: SparseMlaPrefill
    devices: tuple[str, ...] = ("cpu", "cuda")


@cache
def _eager() -> KernelTable:
    return KernelTable(
        name="eager",
        indexer_logits=indexer_logits,
        indexer_logits_prefill=indexer_logits_prefill,
        select_topk=select_topk,
        sparse_mla_decode=sparse_mla_decode,
        sparse_mla_prefill=sparse_mla_prefill,
    )


@cache
def _triton() -> KernelTable:
    try:
        import triton

        from pdwatch.kernels import triton_table_indexer, triton_table_mla
    except ImportError as error:
        raise KernelsUnavailable(
            f"kernels `triton` need Triton, which cannot be imported here ({error}): install it, or use `eager`"
        ) from error
    interpreted = bool(triton.knobs.runtime.interpret)
    if not interpreted and not torch.cuda.is_available():
        raise KernelsUnavailable(
            "kernels `triton` need a GPU, and PyTorch sees none here: use `eager`, or set TRITON_INTERPRET=1 to try "
            "them slowly on a CPU"
        )
    return KernelTable(
        name="triton",
        indexer_logits=triton_table_indexer.indexer_logits,
        indexer_logits_prefill=triton_table_indexer.indexer_logits_prefill,
        select_topk=triton_table_indexer.select_topk,
        sparse_mla_decode=triton_table_mla.sparse_mla_decode,
        sparse_mla_prefill=triton_table_mla.sparse_mla_prefill,
        devices=("cpu",) if interpreted else ("cuda",),
    )


# a backend is imported when its table is asked for
_TABLES: dict[str, Callable[[], KernelTable]] = {"eager": _eager, "triton": _triton}


def kernel_table(name: str) -> KernelTable:
    """The table called `name`. Raises UnknownKernels, and KernelsUnavailable where it cannot run."""
    if name not in _TABLES:
        raise UnknownKernels(f"kernels `{name}` do not exist, use one of: {', '.join(sorted(_TABLES))}")
    return _TABLES[name]()


class UnknownKernels(ValueError):
    """No kernel table has this name."""


class KernelsUnavailable(RuntimeError):
    """A kernel table exists, but not here; the message names what is missing and the remedy."""
