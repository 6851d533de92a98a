"""Text in columns, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_GAP = "  "


class Column(NamedTuple):
    """A column: its heading, and one text a row. Figures stand on the right."""

    heading: str
    cells: Sequence[str]
    is_figure: bool = False


def aligned(columns: Sequence[Column]) -> str:
    """Return rows under their headings, each column as wide as it needs to be; lines have no blanks at their ends.

    >>> print(aligned([Column("POD", ["a", "long"]), Column("MiB", ["1", "20000"], is_figure=True)]))
    POD     MiB
    a         1
    long  20000
    """
    padded = []
    for column in columns:
        cells = [column.heading, *column.cells]
        width = max(map(len, cells))
        padded.append([cell.rjust(width) if column.is_figure else cell.ljust(width) for cell in cells])
    return "\n".join(_GAP.join(row).rstrip() for row in zip(*padded, strict=True))
