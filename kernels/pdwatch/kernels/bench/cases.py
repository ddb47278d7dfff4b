"""What is measured: shapes of DeepSeek-V4-Flash and V3.2, and the least that each must move and compute.

A context of L tokens is L / 4 keys of the indexer in a C4 layer (of which 512 are chosen) and L / 128 rows of a C128
layer. Every case but those of `FLAT` is laid out for 1M tokens: what grows with the maximum shows at short contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pdwatch.kernels.layout_mla import VALUE_DIM, MlaLayout

BATCHES = (1, 4, 16, 64, 128, 256)
CONTEXTS = (2 << 10, 4 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20)
MAXIMUM_CONTEXT = 1 << 20
KEYS_PER_TOKEN, ROWS_PER_TOKEN = 1 / 4, 1 / 128
CHOSEN = 512
WINDOW = 128
INDEX_HEADS, INDEX_DIM = 64, 128
INDEX_PAGE = 64
V4_FP8, V32_FP8, V4_C128 = "v4 fp8", "v3.2 fp8", "v4 fp8 C128"
INDEXER = "fp8 64 heads"
FLAT = "fp8 64 heads, maximum 4K"
FLAT_MAXIMUM_CONTEXT = 4 << 10


class Family(StrEnum):
    """What a case calls."""

    SPARSE_MLA = "sparse_mla"
    INDEXER_LOGITS = "indexer_logits"
    INDEXER_TOPK = "indexer_topk"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaCase:
    """Sparse MLA decode of `batch` rows, one query token each.

    counts      entries of `indices` in each scope
    page_sizes  tokens of a page in each scope
    lengths     how many entries count; None: all
    context     tokens that the lengths stand for, 0 where the work does not follow the context
    """

    name: str
    batch: int
    layout: MlaLayout
    heads: int
    counts: tuple[int, ...]
    page_sizes: tuple[int, ...]
    lengths: tuple[int, ...] | None = None
    context: int = 0
    family: Family = Family.SPARSE_MLA

    @property
    def rows(self) -> int:
        """KV rows that a query attends to."""
        return sum(self.lengths or self.counts)

    @property
    def least_bytes(self) -> int:
        """KV rows and their indices once, query and output once, lse."""
        row = 2 * self.layout.dim if not self.layout.is_fp8 else 584 if self.layout.is_v4 else 656
        return self.batch * (self.rows * (row + 4) + self.heads * (2 * self.layout.dim + 2 * VALUE_DIM + 4))

    @property
    def operations(self) -> int:
        """Multiplications and additions of both matrix products."""
        return self.batch * self.heads * 2 * self.rows * (self.layout.dim + VALUE_DIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerCase:
    """Indexer over `keys` fp8 keys a row in a table for `maximum` keys, without or with the choice of 512."""

    name: str
    batch: int
    context: int
    maximum_context: int
    family: Family

    @property
    def keys(self) -> int:
        return int(self.context * KEYS_PER_TOKEN)

    @property
    def maximum(self) -> int:
        return int(self.maximum_context * KEYS_PER_TOKEN)

    @property
    def least_bytes(self) -> int:
        """Keys with their scales, page ids and query once; then the logits, or only what was chosen of them."""
        result = 4 * (self.keys if self.family is Family.INDEXER_LOGITS else CHOSEN)
        pages = 4 * -(-self.keys // INDEX_PAGE)
        return self.batch * (self.keys * (INDEX_DIM + 4) + pages + INDEX_HEADS * (INDEX_DIM + 4) + result)

    @property
    def operations(self) -> int:
        """Multiplications and additions of the dot products."""
        return self.batch * self.keys * INDEX_HEADS * INDEX_DIM * 2


Case = MlaCase | IndexerCase


def cases(families: Sequence[Family], batches: Sequence[int], contexts: Sequence[int]) -> list[Case]:
    """All cases of these families, batches and contexts, the ones that the bars look at first."""
    made: list[Case] = []
    if Family.SPARSE_MLA in families:
        made += (case for batch in batches for case in _mla_fixed(batch))
        made += (_mla_c128(batch, context) for batch in batches for context in contexts)
    for family in (Family.INDEXER_LOGITS, Family.INDEXER_TOPK):
        if family in families:
            made += (_indexer(family, batch, context) for batch in batches for context in contexts)
            made += (_flat(family, batch) for batch in batches if CONTEXTS[0] in contexts)
    return made


def _mla_fixed(batch: int) -> Iterator[MlaCase]:
    """A C4 layer of V4 in both layouts and with the heads of one of eight GPUs, and V3.2."""
    counts, page_sizes = (WINDOW, CHOSEN), (256, 64)
    for name, layout, heads in (
        (V4_FP8, MlaLayout.FP8_V4, 64),
        ("v4 fp8 8 heads", MlaLayout.FP8_V4, 8),
        ("v4 bf16", MlaLayout.BF16_V4, 64),
    ):
        yield MlaCase(name=name, batch=batch, layout=layout, heads=heads, counts=counts, page_sizes=page_sizes)
    yield MlaCase(name=V32_FP8, batch=batch, layout=MlaLayout.FP8_V32, heads=64, counts=(2048,), page_sizes=(64,))


def _mla_c128(batch: int, context: int) -> MlaCase:
    return MlaCase(
        name=V4_C128,
        batch=batch,
        layout=MlaLayout.FP8_V4,
        heads=64,
        counts=(WINDOW, int(MAXIMUM_CONTEXT * ROWS_PER_TOKEN)),
        page_sizes=(256, 2),
        lengths=(WINDOW, int(context * ROWS_PER_TOKEN)),
        context=context,
    )


def _indexer(family: Family, batch: int, context: int) -> IndexerCase:
    return IndexerCase(name=INDEXER, batch=batch, context=context, maximum_context=MAXIMUM_CONTEXT, family=family)


def _flat(family: Family, batch: int) -> IndexerCase:
    return IndexerCase(name=FLAT, batch=batch, context=CONTEXTS[0], maximum_context=FLAT_MAXIMUM_CONTEXT, family=family)
