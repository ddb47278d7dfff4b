"""A table as data: plain text for pipes, rich's for a terminal, which loads that library only then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, of one line or more, and how a terminal shows it."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Columns' headings and rows of as many cells. `left` has the numbers of the columns that begin at the left."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: frozenset[int]


_GAP: Final = " "


def plain_lines(sheet: Sheet) -> list[str]:
    """The table for a pipe, as wide as it needs to be."""
    table = [[heading.split("\n") for heading in sheet.headings]]
    table += [[cell.text.split("\n") for cell in row] for row in sheet.rows]
    widths = [max(len(line) for row in table for line in row[column]) for column in range(len(sheet.headings))]
    lines: list[str] = []
    for index, row in enumerate(table):
        height = max(map(len, row))
        for column, cell in enumerate(row):
            # headings stand on the line that divides them from the figures, figures on the first line of their row.
            missing = [""] * (height - len(cell))
            row[column] = missing + cell if index == 0 else cell + missing
        lines += _joined(row, widths, sheet.left)
    return lines


def _joined(row: Sequence[Sequence[str]], widths: Sequence[int], left: frozenset[int]) -> Iterator[str]:
    for line in zip(*row, strict=True):
        padded = (
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        yield _GAP.join(padded).rstrip()


def rich_table(sheet: Sheet) -> Table:
    """The table for a terminal. Words that are too long for it are folded, never cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for column, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="left" if column in sheet.left else "right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell.text, cell.style) for cell in row))
    return table
