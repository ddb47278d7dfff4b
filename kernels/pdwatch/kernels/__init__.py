"""Attention and indexer kernels: plain PyTorch references, and the table through which an engine calls a backend."""

from __future__ import annotations

from pdwatch.kernels._attention import sparse_mla_decode, sparse_mla_prefill
from pdwatch.kernels._indexer import indexer_logits, indexer_logits_prefill
from pdwatch.kernels._table import KernelsUnavailable, KernelTable, UnknownKernels, kernel_table
from pdwatch.kernels._topk import select_topk

__all__ = [
    "KernelTable",
    "KernelsUnavailable",
    "UnknownKernels",
    "indexer_logits",
    "indexer_logits_prefill",
    "kernel_table",
    "select_topk",
    "sparse_mla_decode",
    "sparse_mla_prefill",
]
