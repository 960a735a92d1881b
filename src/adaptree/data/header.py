"""Whether the first row of a table names its columns or is data already."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from adaptree.data.columns import ASIDE, LABELS, PAIRS, TEXTS, plain_name
from adaptree.data.files import File
from adaptree.errors import DataError

KNOWN = {*TEXTS, *LABELS, *(name for pair in PAIRS for name in pair)} | {
    "answer", "answers", "choices", "context", "correct", "gold", "name", "ner_tags", "options", "spans", "tags",
    "tokens", "value", "words",
}  # fmt: skip
GIVEN = re.compile(r"column[1-9]\d*")
"""The names of columns that have none."""
FEWEST_WORDS = 4
"""Words that the first row's text must have to be a text and not a name."""
LONGEST_NAME = 60
"""Characters; what is longer is no column's name."""
MOST_LABELS = 50


def column_names(file: File, first: Sequence[Any], rows: Sequence[Sequence[Any]]) -> tuple[list[str], bool]:
    """Return a table's column names, and whether its first row holds them; `rows` are some of those behind it.

    A table without names gets column1, column2, …: where the user says so, and where it is clear.
    """
    numbered = [f"column{i}" for i in range(1, len(first) + 1)]
    if file.no_header:
        return numbered, False
    cells = ["" if cell is None else str(cell).strip() for cell in first]
    if not _names_nothing(cells, rows, file.columns):
        must_differ(cells, file.name)
        return cells, True
    file.note(
        f"the first line of '{file.name}' looks like data, not like column names: the columns are called "
        f"{numbered[0]} to {numbered[-1]}. If it does name them, choose: --text COL --label COL"
    )
    return numbered, False


def must_differ(names: Sequence[str], file: str) -> None:
    """Raise DataError if two columns have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two columns of '{file}' are named '{twice[0]}'.", hint="Rename one of them.")


def _names_nothing(cells: Sequence[str], rows: Sequence[Sequence[Any]], asked: Collection[str]) -> bool:
    """Return whether a first row is clearly data: a text, beside a label that comes again in the same column.

    Where the user or the task asks for column1 or the like, it is enough that no cell is a usual column name.
    """
    plain = [plain_name(cell) for cell in cells if cell]
    if set(asked) & set(cells) or any(name in KNOWN or ASIDE.fullmatch(name) for name in plain):
        return False
    if any(GIVEN.fullmatch(name) for name in asked):
        return True
    numbers = [int(cell) for cell in cells if cell.isdecimal()]
    if len(numbers) > 1 and all(b - a == 1 for a, b in pairwise(numbers)):  # a form's columns 1, 2, 3
        return False
    regular = [row for row in rows if len(row) == len(cells)]
    columns = [["" if cell is None else str(cell).strip() for cell in column] for column in zip(*regular, strict=True)]
    if len(cells) < 2 or not columns:
        return False
    text = max(range(len(cells)), key=lambda i: sum(map(len, columns[i])))
    lengths = sorted(map(len, columns[text]))
    short = len(cells[text]) < min(LONGEST_NAME, lengths[len(lengths) // 4]) or len(cells[text].split()) < FEWEST_WORDS
    question = len(cells[text]) < 2 * LONGEST_NAME and cells[text].endswith(("?", ":"))  # a survey's columns
    if short or question:
        return False
    return any(_is_label(cells[i], columns[i]) for i in range(len(cells)) if i != text)


def _is_label(cell: str, column: Sequence[str]) -> bool:
    """Return whether a cell is one of the few values of its column, or a fraction in a column of numbers."""
    filled = [value for value in column if value]
    if not cell or not filled:
        return False
    if "." in cell and all(map(_is_number, [cell, *filled])):
        return True
    few = 2 <= len(set(filled)) <= max(2, min(MOST_LABELS, len(filled) // 2))
    return few and cell in filled


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
