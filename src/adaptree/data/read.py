"""Rows of whatever people have, as plain dicts, one at a time: files of many formats, folders, data in memory."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptree.data import files, frames, parts, texts
from adaptree.data.events import Listener, silent
from adaptree.data.excel import ENDINGS as EXCEL
from adaptree.data.excel import read_excel, split_sheet
from adaptree.data.files import UNPACK, File, RowTooLong, UnpacksToTooMuch, one_line, undecodable
from adaptree.data.jsons import read_json, read_lines
from adaptree.data.parquet import read_parquet
from adaptree.data.tables import empty, read_table
from adaptree.data.texts import read_columns, read_fasttext, read_text
from adaptree.errors import DataError, UsageError, near

__all__ = ["FORMATS", "UNPACK", "Row", "Source", "name_of", "names", "rows", "suffix"]

Row = tuple[int, dict[str, Any]]
Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | Mapping[str, Any]
NOT_PACKED = (".parquet", *EXCEL)
NAMED = (".jsonl", ".ndjson", ".json", ".parquet")
"""Formats whose columns always have names."""


def rows(
    source: Source,
    *,
    encoding: str = "utf-8",
    no_header: bool = False,
    columns: Collection[str] = (),
    on_event: Listener = silent,
) -> Iterator[Row]:
    """Yield each row with its number: its line in the file, or its place in an array, a sheet or a folder.

    With `no_header` the first row of a table is data, and its columns are called column1, column2, …; else that is
    guessed, where it is clear. `columns` are those that will be asked for. What was guessed is sent as a note.
    """
    several = parts.all_parts(source)
    if len(several) == 1:
        return rows(*several.values(), encoding=encoding, no_header=no_header, columns=columns, on_event=on_event)
    if several:
        raise DataError(f"{parts.several(source, several)}.", hint=parts.give_one(source, several))
    if not isinstance(source, str | os.PathLike):
        _refuse_no_header(no_header, "the data")
        return _from_dicts(frames.rows_of(source))
    if str(source).startswith(frames.HUB):
        _refuse_no_header(no_header, str(source))
        return _from_dicts(frames.from_hub(str(source)))
    path = Path(source)
    if frames.is_saved(path):
        _refuse_no_header(no_header, path.name)
        return _from_dicts(frames.from_folder(path))
    _check_encoding(encoding)
    if texts.label_folders(path):
        _refuse_no_header(no_header, path.name)
        folder = File(path, "", encoding)
        return _guarded(folder, enumerate(texts.read_folders(path, encoding, on_event), 1))
    try:
        _must_be_file(path)
    except OSError as error:
        raise DataError(f"cannot read '{str(path)[:200]}': {error.strerror}.") from None
    file = File(path, suffix(path), encoding, no_header, columns, on_event)
    if file.ending in NAMED:
        _refuse_no_header(no_header, file.name)
    return _guarded(file, FORMATS[file.ending](file))


def name_of(source: Source) -> str:
    """Return what data is called in messages and records: the name of its file."""
    return Path(source).name if isinstance(source, str | os.PathLike) else "the data"


def names(path: str | os.PathLike[str], *, encoding: str = "utf-8", **options: Any) -> list[str]:
    """Return a file's columns; of json, where a row may lack some, those of all its rows. Options are those of rows."""
    found = rows(path, encoding=encoding, **options)
    if not Path(path).is_file() or not suffix(Path(path)).startswith((".json", ".ndjson")):
        return list(next(found)[1])
    return list(dict.fromkeys(name for _, row in found for name in row))


def suffix(path: Path) -> str:
    """Return the file's format, such as '.csv' for 'a.csv' and 'a.CSV.gz'; raise DataError for an unknown one."""
    ends = [end.lower() for end in split_sheet(path)[0].suffixes]
    packed = bool(ends) and ends[-1] in UNPACK
    inner = ends[-2:-1] if packed else ends[-1:]
    if inner and inner[0] in FORMATS and not (packed and inner[0] in NOT_PACKED):
        return inner[0]
    known = ", ".join(FORMATS)
    raise DataError(
        f"cannot read '{path.name}': its ending does not say a known format.",
        hint=f"Known: {known}; all but {', '.join(NOT_PACKED)} also with .gz or .xz.",
    )


def _refuse_no_header(asked: bool, name: str) -> None:
    if asked:
        raise UsageError(f"'{name}' has names for its columns.", hint="Leave out --no-header.")


def _check_encoding(encoding: str) -> None:
    try:
        "".encode(encoding)
    except LookupError as error:
        raise DataError(f"{error}.", hint="Try --encoding utf-8, latin-1, cp1252 or utf-16.") from None


def _must_be_file(path: Path) -> None:
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.is_file() and _is_data(p))
        listed = ", ".join(inside[:8]) + (", …" if len(inside) > 8 else "")
        needed = "It holds no data file, and no folders of .txt files, one for each label."
        raise DataError(
            f"'{path}' is a folder, not a data file.",
            hint=f"Give one of its files: {listed}" if inside else needed,
        )
    path = split_sheet(path)[0]
    if not path.exists():
        folder = path.parent
        if not folder.is_dir():
            raise DataError(f"no such file: '{path}'.", hint=f"There is no folder '{folder}' either.")
        beside = [p.name for p in folder.iterdir() if p.is_file()]
        raise DataError(f"no such file: '{path}'.", hint=near(path.name, beside))
    suffix(path)
    if path.is_file() and path.stat().st_size == 0:
        raise empty(path.name)


def _is_data(path: Path) -> bool:
    try:
        return bool(suffix(path))
    except DataError:
        return False


def _guarded(file: File, stream: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows of a stream; turn whatever is wrong with the file into a DataError."""
    last = 0
    found = False
    try:
        for row in stream:
            found = True
            file.fetched = 0
            last = row[0]
            yield row
    except UnicodeError:
        raise undecodable(file) from None
    except RowTooLong:
        where = f"behind row {last:,}" if found else "at its beginning"
        raise DataError(
            f"'{file.name}' has a row of more than {files.LARGEST_ROW >> 20} MB, {where}.",
            hint="A double quote is left open there, or a line end is missing.",
        ) from None
    except UnpacksToTooMuch:
        raise DataError(
            f"'{file.name}' unpacks to more than {files.MOST_TIMES} times its size: its rows are nearly all the same.",
            hint="If that is right, unpack it first.",
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        if "emory" in str(error):  # liblzma's words: Memory usage limit exceeded
            raise DataError(
                f"unpacking '{file.name}' would take more than {files.MOST_FOR_XZ >> 20} MB of memory.",
                hint="Compress it again: xz -6",
            ) from None
        raise DataError(
            f"'{file.name}' is damaged or cut off: {one_line(error)}.", hint="Fetch or compress it again."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read '{file.path}': {error.strerror or one_line(error)}.") from None
    if not found:
        raise DataError(f"'{file.name}' has no rows.", hint="It needs a row for each text.")


def _from_dicts(source: Iterable[Any]) -> Iterator[Row]:
    number = 0
    for number, given in enumerate(source, 1):
        row = frames.named(given) if isinstance(given, tuple) else given
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise DataError(
                f"row {number} is a {type(given).__name__}, not a dict of column names and values.",
                hint='Give rows such as {"text": "…", "label": "…"} or ("…", "…").',
            )
        yield number, dict(row)
    if number == 0:
        raise DataError("there are no rows.", hint='Give rows such as {"text": "…", "label": "…"}.')


FORMATS: dict[str, Callable[[File], Iterator[Row]]] = {
    ".csv": read_table,
    ".tsv": read_table,
    ".jsonl": read_lines,
    ".ndjson": read_lines,
    ".json": read_json,
    ".parquet": read_parquet,
    ".xlsx": read_excel,
    ".xlsm": read_excel,
    ".txt": read_text,
    ".ft": read_fasttext,
    ".train": read_fasttext,
    ".valid": read_fasttext,
    ".test": read_fasttext,
    ".conll": read_columns,
    ".iob": read_columns,
    ".iob2": read_columns,
    ".bio": read_columns,
}
