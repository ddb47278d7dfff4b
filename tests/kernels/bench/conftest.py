"""A result of the benchmark with made-up times."""

from __future__ import annotations

import pytest

from pdwatch.kernels.bench.cases import Family, cases
from pdwatch.kernels.bench.document import Document
from pdwatch.kernels.bench.measure import Row
from pdwatch.kernels.bench.timing import Roof

# 4 TB/s and 800 TFLOP/s
ROOF = Roof(copy_bytes_per_second=4e12, read_bytes_per_second=4.4e12, matrix_flops_per_second=8e14)


@pytest.fixture
def document() -> Document:
    """Every case at B = 1 and 64 and contexts of 2K and 128K: ours 10 us, FlashMLA and DeepGEMM 9 us, eager 250 us."""
    rows = []
    for case in cases(list(Family), (1, 64), (2 << 10, 128 << 10)):
        peers = {"sparse_mla": "FlashMLA", "indexer_logits": "DeepGEMM", "indexer_topk": "eager"}
        peer = peers[case.family.value]
        rows.append(
            Row(
                family=case.family.value,
                case=case.name,
                batch=case.batch,
                context=case.context,
                maximum_context=getattr(case, "maximum_context", 0),
                least_bytes=case.least_bytes,
                operations=case.operations,
                microseconds={"pdwatch": 10.0, peer: 250.0 if peer == "eager" else 9.0},
                differences={peer: 0.001},
                absent={"per-head Triton": "is missing <here>"} if case.family is Family.SPARSE_MLA else {},
            )
        )
    return Document(started_utc="2026-12-01T00:00:00+00:00", facts={"device": "a GPU"}, roof=ROOF, rows=rows)
