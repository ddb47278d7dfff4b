"""The results as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdwatch.kernels.bench.bars import Bar
from pdwatch.kernels.bench.document import Document
from pdwatch.kernels.bench.measure import Row
from pdwatch.kernels.bench.problem import OURS


def text(document: Document, bars: Sequence[Bar]) -> str:
    """All rows, what is absent and why, and the bars."""
    roof = document.roof
    lines = [
        *(f"{name}: {value}" for name, value in document.facts.items()),
        f"roof: copy {roof.copy_bytes_per_second / 1e12:.2f} TB/s, read {roof.read_bytes_per_second / 1e12:.2f} TB/s, "
        f"bf16 {roof.matrix_flops_per_second / 1e12:.0f} TFLOP/s",
        "times in us",
    ]
    for rows in document.groups().values():
        lines += ["", *_family(document, rows)]
    lines += ["", *_differences(document.rows), *_absences(document.rows), "", *_bars(bars)]
    return "\n".join(lines)


def progress(row: Row) -> str:
    """One line for a row that has just been measured."""
    times = ", ".join(f"{name} {value:.1f} us" for name, value in row.microseconds.items())
    return f"{row.family} {row.case} {_place(row)}: {times}"


def _family(document: Document, rows: Sequence[Row]) -> Iterator[str]:
    peers = sorted({name for row in rows for name in row.microseconds} - {OURS})
    yield f"{rows[0].family}, {rows[0].case}"
    heads = ["point", OURS, "of roof", "TB/s", *(text for peer in peers for text in (peer, "ratio"))]
    yield from _aligned([heads, *(_cells(document, row, peers) for row in rows)])


def _cells(document: Document, row: Row, peers: Sequence[str]) -> list[str]:
    ours = row.microseconds[OURS]
    share = document.roof.microseconds(row.least_bytes, row.operations) / ours
    cells = [_place(row), f"{ours:.1f}", f"{share:.0%}", f"{row.least_bytes / ours / 1e6:.2f}"]
    for peer in peers:
        theirs = row.microseconds.get(peer)
        cells += ["–", "–"] if theirs is None else [f"{theirs:.1f}", f"{theirs / ours:.2f}"]
    return cells


def _differences(rows: Sequence[Row]) -> Iterator[str]:
    largest: dict[tuple[str, str], float] = {}
    for row in rows:
        for name, difference in row.differences.items():
            key = (row.family, name)
            largest[key] = max(largest.get(key, 0.0), difference)
    for (family, name), difference in largest.items():
        yield f"largest difference to {name} in {family}: {difference:.1e}"


def _absences(rows: Sequence[Row]) -> Iterator[str]:
    reasons: dict[tuple[str, str], int] = {}
    for row in rows:
        for name, reason in row.absent.items():
            reasons[name, reason] = reasons.get((name, reason), 0) + 1
    for (name, reason), count in reasons.items():
        yield f"not measured in {count} of {len(rows)} cases: {name} {reason}"


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    words = {None: "not measured", True: "held", False: "MISSED"}
    heads = ["bar", "point", "at least", "reached", ""]
    rows = [
        [
            bar.words,
            bar.point,
            f"{bar.least:.2f}",
            "–" if bar.reached is None else f"{bar.reached:.2f}",
            words[bar.held],
        ]
        for bar in bars
    ]
    yield from _aligned([heads, *rows])


def _place(row: Row) -> str:
    return f"B={row.batch}" if not row.context else f"L={row.context >> 10}K B={row.batch}"


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for cells in table:
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()
