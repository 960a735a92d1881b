"""Rows of csv and tsv files, and of text files whose lines have tabs."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from typing import Any

from adaptree.data.files import CHUNK, LARGEST_ROW, File, one_line
from adaptree.data.header import column_names
from adaptree.errors import DataError

QUOTED = re.compile(r'"(?:[^"]|"")*"')
SAMPLE = 500
"""Rows from which it is told whether the first one is a header."""
REGULAR = 0.9
"""The share of a text file's lines that must have the same number of tabs, for it to be a table."""


def read_table(file: File) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a csv or tsv file, each with the number of its first line."""
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_ROW))
    start = file.start()
    dialect = _dialect(file, start)
    names: list[str] = []
    line = 1
    with file.text(newline="") as stream:
        reader = csv.reader(stream, strict=True, **dialect)
        try:
            for fields in reader:
                if fields and not names:
                    names, named = column_names(file, fields, _sample(start, dialect))
                    if not named:
                        yield line, dict(zip(names, fields, strict=True))
                elif len(fields) == len(names):
                    yield line, dict(zip(names, fields, strict=True))
                elif fields:
                    few = f"{len(fields)} field{'' if len(fields) == 1 else 's'}"
                    raise DataError(
                        f"row {line} of '{file.name}' has {few}, the header has {len(names)}.",
                        hint="Put a text that contains the separator in double quotes.",
                    )
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"row {line} of '{file.name}' cannot be read: {one_line(error)}.",
                hint="A double quote is left open, or stands inside a quoted text without being doubled.",
            ) from None
    if not names:
        raise empty(file.name)


def empty(name: str) -> DataError:
    """Return the error for a file that holds nothing."""
    return DataError(f"'{name}' is empty.", hint="It needs column names, and a row for each text.")


def is_table(start: str) -> bool:
    """Return whether a text that begins like this is a table: nearly all lines have the same number of tabs.

    Text with a stray tab, or with a tab at the beginning of every line, is not.
    """
    lines = [line.rstrip("\r") for line in _whole_lines(start) if line.strip()][:SAMPLE]
    if len(lines) < 2:
        return False
    tabs = lines[0].count("\t")
    rows = [line.split("\t") for line in lines if line.count("\t") == tabs]
    if not tabs or len(rows) < REGULAR * len(lines):
        return False
    return all(any(cell.strip() for cell in column) for column in zip(*rows, strict=True))


def _whole_lines(start: str) -> list[str]:
    """Return the lines of a file's first characters; not the last one, if it may be cut off."""
    lines = start.split("\n")
    return lines[:-1] if len(start) >= CHUNK else lines


def _sample(start: str, dialect: dict[str, Any]) -> list[list[str]]:
    """Return the first rows behind the first one; whatever is wrong with them is for the reader to say."""
    found: list[list[str]] = []
    try:
        for row in itertools.islice(csv.reader(io.StringIO(start, newline=""), **dialect), SAMPLE + 1):
            if row:
                found.append(row)
    except csv.Error:
        pass
    return found[1:-1] if len(start) >= CHUNK and len(found) <= SAMPLE else found[1:]


def _dialect(file: File, start: str) -> dict[str, Any]:
    """Return how fields are separated and quoted, from the file's first characters.

    Many .csv files use semicolons; many .tsv files (GLUE's) do not quote, and a stray quote would swallow rows.
    """
    lines = [line.rstrip("\r") for line in start.split("\n") if line.strip()]
    header = lines[0] if lines else ""
    if file.ending == ".csv":
        others = [mark for mark in ";\t" if mark in header]
        return {"delimiter": others[0] if others and "," not in header else ","}
    whole = lines[:-1] if len(start) >= CHUNK else lines
    cells = [line.split("\t") for line in whole]
    regular = all(len(row) == len(cells[0]) for row in cells)
    stray = any(cell.startswith('"') and not QUOTED.fullmatch(cell) for row in cells for cell in row)
    return {"delimiter": "\t", "quoting": csv.QUOTE_NONE if regular and stray else csv.QUOTE_MINIMAL}
