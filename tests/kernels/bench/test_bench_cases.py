"""What a case must move and compute, by hand."""

from __future__ import annotations

import pytest

from pdwatch.kernels.bench.cases import BATCHES, CONTEXTS, Family, IndexerCase, MlaCase, cases
from pdwatch.kernels.layout_mla import MlaLayout


@pytest.mark.parametrize(
    ("layout", "heads", "counts", "lengths", "bytes_of_one", "operations"),
    [
        # 640 rows of 584 B and an index of 4 B; 64 heads of 512 bf16 in and out and a float of lse
        (MlaLayout.FP8_V4, 64, (128, 512), None, 640 * 588 + 64 * (1024 + 1024 + 4), 2 * 64 * 640 * 1024),
        (MlaLayout.FP8_V32, 64, (2048,), None, 2048 * 660 + 64 * (1152 + 1024 + 4), 2 * 64 * 2048 * 1088),
        (MlaLayout.BF16_V4, 8, (128, 512), None, 640 * 1028 + 8 * 2052, 2 * 8 * 640 * 1024),
        # only what counts of a scope is read
        (MlaLayout.FP8_V4, 64, (128, 8192), (128, 16), 144 * 588 + 64 * 2052, 2 * 64 * 144 * 1024),
    ],
    ids=["v4-fp8", "v32-fp8", "v4-bf16-8-heads", "lengths"],
)
def test_sparse_mla(
    layout: MlaLayout,
    heads: int,
    counts: tuple[int, ...],
    lengths: tuple[int, ...] | None,
    bytes_of_one: int,
    operations: int,
) -> None:
    case = MlaCase(
        name="x", batch=3, layout=layout, heads=heads, counts=counts, page_sizes=(64,) * len(counts), lengths=lengths
    )
    assert (case.least_bytes, case.operations) == (3 * bytes_of_one, 3 * operations)


@pytest.mark.parametrize(
    ("family", "result_bytes"), [(Family.INDEXER_LOGITS, 4 * 512), (Family.INDEXER_TOPK, 4 * 512)], ids=str
)
def test_indexer(family: Family, result_bytes: int) -> None:
    # 2,048 tokens are 512 keys of 128 + 4 B in 8 pages; 64 heads of 128 B and a weight; 512 logits or 512 positions
    case = IndexerCase(name="x", batch=2, context=2048, maximum_context=1 << 20, family=family)
    assert (case.keys, case.maximum) == (512, 262144)
    assert case.least_bytes == 2 * (512 * 132 + 8 * 4 + 64 * 132 + result_bytes)
    assert case.operations == 2 * 512 * 64 * 128 * 2


def test_every_batch_and_context_is_measured_in_every_family() -> None:
    made = cases(list(Family), BATCHES, CONTEXTS)
    for family in Family:
        points = {(case.batch, case.context) for case in made if case.family is family}
        assert {(batch, context) for batch in BATCHES for context in CONTEXTS} <= points
    assert [case for case in made if case.family is Family.SPARSE_MLA] == cases([Family.SPARSE_MLA], BATCHES, CONTEXTS)
    names = [(case.family, case.name, case.batch, case.context) for case in made]
    assert len(set(names)) == len(names)
