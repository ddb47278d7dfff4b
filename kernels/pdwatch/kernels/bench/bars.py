"""The speeds that the kernels must have, and what was reached: each bar at each point that was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdwatch.kernels.bench.cases import CONTEXTS, FLAT, INDEXER, V4_FP8, V32_FP8, Family
from pdwatch.kernels.bench.document import Document
from pdwatch.kernels.bench.indexer import DEEP_GEMM
from pdwatch.kernels.bench.measure import Row
from pdwatch.kernels.bench.mla import FLASH_MLA, PER_HEAD
from pdwatch.kernels.bench.problem import EAGER, OURS

SHORT, LONG = CONTEXTS[0], 128 << 10
ROOF_FROM_BATCH = 64


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar at one point: `reached` must be at least `least`; None when a peer that it needs was not measured."""

    words: str
    point: str
    least: float
    reached: float | None

    @property
    def held(self) -> bool | None:
        return None if self.reached is None else self.reached >= self.least


def bars(document: Document) -> list[Bar]:
    """All bars at all points of the document, in a fixed order."""
    rows = {(row.family, row.case, row.batch, row.context): row for row in document.rows}
    return [*_mla(document), *_logits(document.rows), *_choice(document), *_flat(rows)]


def _mla(document: Document) -> Iterator[Bar]:
    for row in _of(document.rows, Family.SPARSE_MLA, V4_FP8):
        point = f"B={row.batch}"
        yield Bar("sparse MLA, V4 fp8: speed over FlashMLA's", point, 1.0, _faster(row, FLASH_MLA))
        if row.batch == ROOF_FROM_BATCH:
            yield Bar("sparse MLA, V4 fp8: speed over FlashMLA's at B=64", point, 1.5, _faster(row, FLASH_MLA))
        if row.batch >= ROOF_FROM_BATCH:
            share = document.roof.microseconds(row.least_bytes, row.operations) / row.microseconds[OURS]
            yield Bar("sparse MLA, V4 fp8: share of the roof", point, 0.5, share)
        yield Bar("sparse MLA, V4 fp8: speed over a per-head kernel's", point, 10.0, _faster(row, PER_HEAD))
    for row in _of(document.rows, Family.SPARSE_MLA, V32_FP8):
        yield Bar("sparse MLA, V3.2 fp8: speed over FlashMLA's", f"B={row.batch}", 0.9, _faster(row, FLASH_MLA))


def _logits(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in _of(rows, Family.INDEXER_LOGITS, INDEXER):
        yield Bar("indexer logits: speed over DeepGEMM's", _point(row), 0.85, _faster(row, DEEP_GEMM))


def _choice(document: Document) -> Iterator[Bar]:
    for row in _of(document.rows, Family.INDEXER_TOPK, INDEXER):
        if row.context == LONG:
            # the keys must be read; copies count twice in their bandwidth, so the better reader is the roof
            bandwidth = max(document.roof.read_bytes_per_second, document.roof.copy_bytes_per_second)
            share = row.least_bytes / bandwidth * 1e6 / row.microseconds[OURS]
            yield Bar("logits + top-k: share of the read bandwidth", _point(row), 0.6, share)
        if row.context == SHORT:
            yield Bar("logits + top-k: speed over eager PyTorch's", _point(row), 20.0, _faster(row, EAGER))


def _flat(rows: dict[tuple[str, str, int, int], Row]) -> Iterator[Bar]:
    for (family, case, batch, context), small in rows.items():
        large = rows.get((family, INDEXER, batch, context))
        if case == FLAT and large is not None:
            ratio = small.microseconds[OURS] / large.microseconds[OURS]
            point = f"{family} {_point(small)}"
            # at most 5 % more time is at least 1 / 1.05 of the speed
            yield Bar("indexer: speed with maximum 1M over that with maximum 4K", point, 1 / 1.05, ratio)


def _of(rows: Sequence[Row], family: Family, case: str) -> list[Row]:
    return [row for row in rows if (row.family, row.case) == (family.value, case)]


def _point(row: Row) -> str:
    return f"L={row.context >> 10}K B={row.batch}"


def _faster(row: Row, peer: str) -> float | None:
    theirs = row.microseconds.get(peer)
    return None if theirs is None else theirs / row.microseconds[OURS]
