"""What a kind has found in a task's predictions, as sections of its card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.kinds.findings import Figure, Table
from adaptree.reports.markdown import number, plain, score, section, table, value

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
    return _table(block) if isinstance(block, Table) else block


def _table(found: Table) -> str:
    """Return a table in Markdown; "" where it has no rows."""
    if not found.rows:
        return ""
    lines = []
    for row in found.rows:
        cells = [
            _score(cell) if name in found.scores else _cell(cell) for name, cell in zip(found.head, row, strict=True)
        ]
        if found.row_names:
            cells[0] = f"**{plain(row[0], CUT_NAME)}**"
        lines.append(cells)
    return table([plain(name, CUT_NAME) for name in found.head], lines)


def _score(cell: Any) -> str:
    return score(cell) if cell is None or isinstance(cell, int | float) else plain(cell)


def _cell(cell: Any) -> str:
    if isinstance(cell, list):
        return " · ".join(plain(part, CUT) for part in cell)
    if isinstance(cell, str):
        return plain(cell, CUT)
    return number(cell) if isinstance(cell, int) else value(cell)
