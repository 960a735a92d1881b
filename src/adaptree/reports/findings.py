"""What a kind has found in a task's predictions, as sections of its card."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.kinds.findings import Figure, Table
from adaptree.reports.markdown import number, plain, score, section, table

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

CUT = 200
CUT_NAME = 40


def sections(record: Record, images: Mapping[str, str]) -> list[str]:
    """Return the sections that the record has something for; `images` are its figures as the card shows them."""
    kind, found = kinds.find(record.kind), record.extra.get("insight")
    if kind is None or not found:
        return []
    return [
        section(each.title, *(_block(block, images) for block in each.blocks)) for each in kind.sections(found, record)
    ]


def _block(block: str | Table | Figure, images: Mapping[str, str]) -> str:
    if isinstance(block, Figure):
        return images.get(block.name, "")
    return table_of(block) if isinstance(block, Table) else block


def table_of(found: Table) -> str:
    """Return a table in Markdown; "" where it has no rows."""
    if not found.rows:
        return ""
    columns = []
    for name, column in zip(found.head, zip(*found.rows, strict=True), strict=True):
        columns.append([_score(cell) for cell in column] if name in found.scores else _column(column))
    if found.row_names:
        columns[0] = [f"**{plain(row[0], CUT_NAME)}**" for row in found.rows]
    return table([plain(name, CUT_NAME) for name in found.head], zip(*columns, strict=True))


def _score(cell: Any) -> str:
    return score(cell) if cell is None or isinstance(cell, int | float) else plain(cell)


def _column(cells: Sequence[Any]) -> list[str]:
    """Return the cells of a column, its numbers with the same decimals: as many as give the largest four digits."""
    largest = max((abs(cell) for cell in cells if isinstance(cell, float) and math.isfinite(cell)), default=0.0)
    digits = 3 - math.floor(math.log10(largest)) if largest else 4
    return [_cell(cell, digits) for cell in cells]


def _cell(cell: Any, digits: int) -> str:
    if isinstance(cell, list):
        return " · ".join(plain(part, CUT) for part in cell)
    if isinstance(cell, str):
        return plain(cell, CUT)
    if isinstance(cell, int):
        return number(cell)
    if cell is None or not math.isfinite(cell):
        return "not a number"
    return f"{cell:,.{max(digits, 0)}f}" if -12 < digits < 12 else f"{cell:.3e}"
