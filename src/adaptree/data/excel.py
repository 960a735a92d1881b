"""Rows of an Excel workbook, through openpyxl: of its first sheet with data, or of FILE.xlsx#SHEET."""

from __future__ import annotations

import itertools
import re
import warnings
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, time
from importlib import import_module
from pathlib import Path
from typing import Any

from adaptree.data.files import CHUNK, File, one_line
from adaptree.data.header import column_names
from adaptree.data.tables import SAMPLE, empty
from adaptree.errors import DataError, near

ENDINGS = (".xlsx", ".xlsm")
LARGEST_ROW = 4 << 20
"""Bytes of XML that a row may have. Excel allows 32,767 characters a cell."""
LARGEST_PART = 512 << 20
"""Memory that the texts of a workbook, which are read whole, may take where the packed file is small."""
MOST_PACKED = 60
"""How much more memory than it has bytes a large part may take."""
BESIDE = 8 << 20
"""Bytes of parts that are neither sheets nor texts: styles, names of sheets."""
OF_TAG = 100
"""Bytes of memory that a tag of XML takes."""
TEXTS = "sharedstrings"


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """Return FILE.xlsx and SHEET of FILE.xlsx#SHEET; the path itself, and None, of any other."""
    name, mark, sheet = path.name.partition("#")
    if mark and Path(name).suffix.lower() in ENDINGS and not _exists(path):
        return path.with_name(name), sheet
    return path, None


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def read_excel(file: File) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a sheet, with their numbers in it; the other sheets that hold something are named in a note."""
    path, wanted = split_sheet(file.path)
    try:
        openpyxl = import_module("openpyxl")
    except ImportError:
        raise DataError(f"reading '{path.name}' needs openpyxl.", hint="pip install 'adaptree[excel]'") from None
    try:
        with path.open("rb") as stream:
            _check_size(path)
            with warnings.catch_warnings(action="ignore"):
                book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
            sheet = _choose(file, path, list(book.worksheets), wanted)
            yield from _rows(file, sheet)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, SyntaxError, EOFError) as error:
        raise DataError(
            f"'{path.name}' is damaged or no Excel workbook: {one_line(error)}.", hint="Save it again as .xlsx."
        ) from None


def _choose(file: File, path: Path, sheets: list[Any], wanted: str | None) -> Any:
    """Return the sheet that the user names, else the first that has cells."""
    if wanted is not None:
        for sheet in sheets:
            if sheet.title == wanted:
                return sheet
        names = [sheet.title for sheet in sheets]
        hint = near(wanted, names) or f"There are: {', '.join(names)}."
        raise DataError(f"'{path.name}' has no sheet '{wanted}'.", hint=hint)
    filled = [sheet for sheet in sheets if next(_filled(sheet), None) is not None]
    if not filled:
        raise empty(path.name)
    if len(filled) > 1:
        others = ", ".join(f"{path.name}#{sheet.title}" for sheet in filled[1:])
        file.note(f"of '{path.name}' the sheet '{filled[0].title}' is read. There are more: {others}")
    return filled[0]


def _filled(sheet: Any) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows of a sheet that are not blank, without the empty cells at their ends, with their numbers."""
    sheet.reset_dimensions()  # some programs write them wrongly
    stream = sheet.iter_rows(values_only=True)
    number = 0
    while True:
        with warnings.catch_warnings(action="ignore"):
            some = list(itertools.islice(stream, SAMPLE))
        if not some:
            return
        for cells in some:
            number += 1
            last = max((i for i, cell in enumerate(cells, 1) if cell is not None and cell != ""), default=0)
            if last:
                yield number, [_value(cell) for cell in cells[:last]]


def _value(cell: Any) -> Any:
    return cell.isoformat() if isinstance(cell, datetime | date | time) else cell


def _rows(file: File, sheet: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    stream = _filled(sheet)
    head = list(itertools.islice(stream, SAMPLE))
    if not head:
        raise empty(file.name)
    width = max(len(cells) for _, cells in head)
    (start, first), *rest = [(number, cells + [None] * (width - len(cells))) for number, cells in head]
    titles = [f"column{i}" if cell is None else cell for i, cell in enumerate(first, 1)]
    names, named = column_names(file, titles, [cells for _, cells in rest])
    for number, cells in itertools.chain([] if named else [(start, first)], rest, stream):
        if len(cells) > width:
            raise DataError(
                f"row {number} of '{file.name}' has {len(cells)} cells, those before it at most {width}.",
                hint="Remove what stands beside the table.",
            )
        yield number, dict(itertools.zip_longest(names, cells))


def _check_size(path: Path) -> None:
    """Raise DataError if reading the workbook would take far more memory than it has bytes."""
    with zipfile.ZipFile(path) as archive:
        texts = _texts_of(archive)
        for part in archive.infolist():
            if part.filename.lower() in texts:
                limit = max(LARGEST_PART, MOST_PACKED * part.compress_size)
                size = part.file_size if part.file_size > limit else _memory(archive, part)
            elif "worksheets/" in part.filename.lower():
                size, limit = _longest(archive, part, b"</row"), LARGEST_ROW
            elif part.filename.lower().endswith((".xml", ".rels")):
                size, limit = part.file_size, BESIDE
            else:
                continue  # pictures and the like are not read
            if size > limit:
                raise DataError(
                    f"'{path.name}' would take too much memory: a part of it, '{part.filename}', unpacks to "
                    f"{part.file_size >> 20:,} MB.",
                    hint="Save the sheet as csv, and give that.",
                )


def _texts_of(archive: zipfile.ZipFile) -> set[str]:
    """Return the names of the parts that hold texts, whatever they are called, in lower case."""
    with archive.open("[Content_Types].xml") as stream:
        content = stream.read(BESIDE).lower()
    tags = [tag for tag in re.findall(rb"<[^>]*>", content) if TEXTS.encode() in tag]
    names = [found.decode(errors="replace") for tag in tags for found in re.findall(rb'partname="/?([^"]*)"', tag)]
    return {*names, *(name.lower() for name in archive.namelist() if TEXTS in name.lower())}


def _longest(archive: zipfile.ZipFile, part: zipfile.ZipInfo, mark: bytes) -> int:
    """Return the largest number of bytes from one mark to the next, or of those up to the first that is too large."""
    longest = since = 0
    with archive.open(part) as stream:
        while (chunk := stream.read(CHUNK)) and longest <= LARGEST_ROW:
            pieces = chunk.split(mark)
            longest = max(longest, since + len(pieces[0]), *map(len, pieces))
            since = len(pieces[-1]) if len(pieces) > 1 else since + len(chunk)
    return longest


def _memory(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> int:
    """Return about how much memory the elements of a part take when it is read whole."""
    tags = 0
    with archive.open(part) as stream:
        while chunk := stream.read(CHUNK):
            tags += chunk.count(b"<")
    return part.file_size + OF_TAG * tags
