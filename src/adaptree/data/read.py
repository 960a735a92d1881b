"""Rows of a data file as plain dicts, one at a time: csv, tsv, json, parquet, plain text, CoNLL; .gz and .xz."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from adaptree.data import frames
from adaptree.data.conll import read_conll
from adaptree.data.squad import read_squad
from adaptree.errors import DataError, near

Row = tuple[int, dict[str, Any]]
Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]]

LARGEST_FIELD = 128 << 20  # characters; beyond it a quote was left open, and memory must stay bounded
CHUNK = 1 << 20
NESTED = re.compile(r'\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[')  # how SQuAD's own files begin
QUOTED = re.compile(r'"(?:[^"]|"")*"')
UNPACK: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def rows(source: Source, *, encoding: str = "utf-8") -> Iterator[Row]:
    """Yield each row with its number: its line in the file, or its place in an array or parquet file."""
    if not isinstance(source, str | os.PathLike):
        return _from_dicts(frames.rows_of(source))
    if str(source).startswith(frames.HUB):
        return _from_dicts(frames.from_hub(str(source)))
    path = Path(source)
    if frames.is_saved(path):
        return _from_dicts(frames.from_folder(path))
    try:
        _must_be_file(path)
    except OSError as error:
        raise DataError(f"cannot read '{str(path)[:200]}': {error.strerror}.") from None
    try:
        "".encode(encoding)
    except LookupError as error:
        raise DataError(f"{error}.", hint="Try --encoding utf-8, latin-1, cp1252 or utf-16.") from None
    return _guarded(path, encoding, FORMATS[suffix(path)](path, encoding))


def name_of(source: Source) -> str:
    """Return what data is called in messages and records: the name of its file."""
    return Path(source).name if isinstance(source, str | os.PathLike) else "the data"


def names(path: str | os.PathLike[str], *, encoding: str = "utf-8") -> list[str]:
    """Return a file's columns; of json, where a row may lack some, those of all its rows."""
    found = rows(path, encoding=encoding)
    if not suffix(Path(path)).startswith((".json", ".ndjson")):
        return list(next(found)[1])
    return list(dict.fromkeys(name for _, row in found for name in row))


def suffix(path: Path) -> str:
    """Return the file's format, such as '.csv' for 'a.csv' and 'a.CSV.gz'; raise DataError for an unknown one."""
    ends = [end.lower() for end in path.suffixes]
    packed = bool(ends) and ends[-1] in UNPACK
    inner = ends[-2:-1] if packed else ends[-1:]
    if inner and inner[0] in FORMATS and not (packed and inner[0] == ".parquet"):
        return inner[0]
    known = ", ".join(FORMATS)
    raise DataError(
        f"cannot read '{path.name}': its ending does not say a known format.",
        hint=f"Known: {known}; all but .parquet also with .gz or .xz.",
    )


def _must_be_file(path: Path) -> None:
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.is_file() and _is_data(p))
        listed = ", ".join(inside[:8]) + (", …" if len(inside) > 8 else "")
        raise DataError(
            f"'{path}' is a folder, not a data file.",
            hint=f"Give one of its files: {listed}" if inside else "It holds no data file.",
        )
    if not path.exists():
        folder = path.parent
        if not folder.is_dir():
            raise DataError(f"no such file: '{path}'.", hint=f"There is no folder '{folder}' either.")
        beside = [p.name for p in folder.iterdir() if p.is_file()]
        raise DataError(f"no such file: '{path}'.", hint=near(path.name, beside))
    suffix(path)
    if path.is_file() and path.stat().st_size == 0:
        raise _empty(path)


def _is_data(path: Path) -> bool:
    try:
        return bool(suffix(path))
    except DataError:
        return False


def _empty(path: Path) -> DataError:
    return DataError(f"'{path.name}' is empty.", hint="It needs column names, and a row for each text.")


def _guarded(path: Path, encoding: str, stream: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows of a stream; turn whatever is wrong with the file into a DataError."""
    found = False
    try:
        for row in stream:
            found = True
            yield row
    except UnicodeError:
        raise _undecodable(path, encoding) from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"'{path.name}' is damaged or cut off: {_one_line(error)}.", hint="Fetch or compress it again."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or _one_line(error)}.") from None
    if not found:
        raise DataError(f"'{path.name}' has no rows.", hint="It needs a row for each text.")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")[:200]


def _open_bytes(path: Path) -> IO[bytes]:
    return cast(IO[bytes], UNPACK.get(path.suffix.lower(), open)(path, "rb"))


def _open_text(path: Path, encoding: str, newline: str | None = None) -> IO[str]:
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # the byte order mark that Excel writes is not part of the first column's name
    return cast(
        IO[str], UNPACK.get(path.suffix.lower(), open)(path, "rt", encoding=encoding, errors="strict", newline=newline)
    )


def _undecodable(path: Path, encoding: str) -> DataError:
    """Return the error for a file in another encoding, with the first bad byte.

    The file is read again: the text layer knows the byte's place only within its own buffer.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = lines = 0
    where, start = "", b""
    with _open_bytes(path) as stream:
        chunk = start = stream.read(CHUNK)
        while not where:
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = error.start - pending
                value = error.object[error.start]
                line = lines + chunk.count(b"\n", 0, max(at, 0)) + 1
                where = f"byte 0x{value:02x} at offset {offset + at:,} (line {line:,})"
            except UnicodeError as error:
                where = _one_line(error)
            if not chunk:
                break
            offset += len(chunk)
            lines += chunk.count(b"\n")
            chunk = stream.read(CHUNK)
    marked = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    better = "utf-16" if marked else "utf-8" if "latin" in encoding or "16" in encoding else "latin-1"
    return DataError(f"'{path.name}' is not {encoding}: {where}.", hint=f"Choose how to read it: --encoding {better}")


def _from_dicts(source: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    number = 0
    for number, row in enumerate(source, 1):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise DataError(
                f"row {number} is a {type(row).__name__}, not a dict of column names and values.",
                hint='Give rows such as {"text": "…", "label": "…"}.',
            )
        yield number, dict(row)
    if number == 0:
        raise DataError("there are no rows.", hint='Give rows such as {"text": "…", "label": "…"}.')


def _from_separated(path: Path, encoding: str) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_FIELD))
    dialect = _dialect(path, encoding)
    with _open_text(path, encoding, newline="") as stream:
        reader = csv.reader(stream, strict=True, **dialect)
        line = 1
        names: list[str] | None = None
        try:
            for fields in reader:
                if not fields:
                    pass  # a blank line
                elif names is None:
                    names = [name.strip() for name in fields]
                    _must_differ(names, path)
                elif len(fields) == len(names):
                    yield line, dict(zip(names, fields, strict=True))
                else:
                    raise DataError(
                        f"row {line} of '{path.name}' has {_fields(len(fields))}, the header has {len(names)}.",
                        hint="Put a text that contains the separator in double quotes.",
                    )
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"row {line} of '{path.name}' cannot be read: {_one_line(error)}.",
                hint="A double quote is left open, or stands inside a quoted text without being doubled.",
            ) from None
    if names is None:
        raise _empty(path)


def _fields(count: int) -> str:
    return f"{count} field{'' if count == 1 else 's'}"


def _must_differ(names: list[str], path: Path) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two columns of '{path.name}' are named '{twice[0]}'.", hint="Rename one of them.")


def _dialect(path: Path, encoding: str) -> dict[str, Any]:
    """Return how fields are separated and quoted, from the file's first lines.

    Many .csv files use semicolons; many .tsv files (GLUE's) do not quote, and a stray quote would swallow rows.
    """
    with _open_text(path, encoding, newline="") as stream:
        start = stream.read(CHUNK)
    lines = [line.rstrip("\r") for line in start.split("\n") if line.strip()]
    header = lines[0] if lines else ""
    if suffix(path) == ".csv":
        others = [mark for mark in ";\t" if mark in header]
        return {"delimiter": others[0] if others and "," not in header else ","}
    whole = lines[:-1] if len(start) == CHUNK else lines
    cells = [line.split("\t") for line in whole]
    regular = all(len(row) == len(cells[0]) for row in cells)
    stray = any(cell.startswith('"') and not QUOTED.fullmatch(cell) for row in cells for cell in row)
    return {"delimiter": "\t", "quoting": csv.QUOTE_NONE if regular and stray else csv.QUOTE_MINIMAL}


def _from_lines(path: Path, encoding: str) -> Iterator[Row]:
    with _open_text(path, encoding) as stream:
        for line, text in enumerate(stream, 1):
            if text.strip():
                try:
                    value = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise _broken(path, line, error) from None
                yield line, _must_be_object(value, line, path)


def _from_json(path: Path, encoding: str) -> Iterator[Row]:
    with _open_text(path, encoding) as stream:
        start = stream.read(CHUNK).lstrip()
    if start.startswith("[") or not NESTED.match(start):
        yield from (_from_array if start.startswith("[") else _from_lines)(path, encoding)
        return
    with _open_text(path, encoding) as stream:
        try:
            value = json.load(stream)
        except (ValueError, RecursionError) as error:
            raise _broken(path, getattr(error, "lineno", 1), error) from None
    yield from read_squad(_must_be_object(value, 1, path))


def _from_text(path: Path, encoding: str) -> Iterator[Row]:
    with _open_text(path, encoding) as stream:
        for line, text in enumerate(stream, 1):
            if text.strip():
                yield line, {"text": text.rstrip("\r\n")}


def _from_columns(path: Path, encoding: str) -> Iterator[Row]:
    with _open_text(path, encoding) as stream:
        try:
            yield from read_conll(stream)
        except DataError as error:
            raise DataError(f"'{path.name}': {error.what}", hint=error.hint) from None


def _from_array(path: Path, encoding: str) -> Iterator[Row]:
    """Yield the objects of an array one by one, with no more in memory than a chunk and an object."""
    decoder = json.JSONDecoder()
    with _open_text(path, encoding) as stream:
        buffer = stream.read(CHUNK)
        at = buffer.index("[") + 1
        done = buffer.count("\n", 0, at)  # line ends before `at`
        number = 0
        while True:
            end = at
            while end < len(buffer) and (buffer[end].isspace() or (buffer[end] == "," and number)):
                end += 1
            done += buffer.count("\n", at, end)
            at = end
            if buffer[at : at + 1] == "]":
                return
            try:
                value, end = decoder.raw_decode(buffer, at)
            except (ValueError, RecursionError) as error:
                more = stream.read(max(CHUNK, len(buffer) - at)) if _cut_off(error, len(buffer)) else ""
                if not more or len(buffer) - at > LARGEST_FIELD:
                    extra = buffer.count("\n", at, error.pos) if isinstance(error, json.JSONDecodeError) else 0
                    raise _broken(path, done + extra + 1, error) from None
                buffer, at = buffer[at:] + more, 0
                continue
            number += 1
            yield number, _must_be_object(value, number, path)
            done += buffer.count("\n", at, end)
            at = end


def _cut_off(error: Exception, size: int) -> bool:
    """Return whether a decoding error may only mean that the buffer ends here."""
    return isinstance(error, json.JSONDecodeError) and (error.msg.startswith("Unterminated") or error.pos > size - 16)


def _broken(path: Path, line: int, error: Exception) -> DataError:
    why = error.msg if isinstance(error, json.JSONDecodeError) else _one_line(error)
    return DataError(
        f"line {line} of '{path.name}' is broken JSON: {why}.",
        hint="Each line must be one whole object." if suffix(path) != ".json" else "An array of objects is needed.",
    )


def _must_be_object(value: Any, number: int, path: Path) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise DataError(
        f"row {number} of '{path.name}' is a JSON {_json_name(value)}, not an object.",
        hint='Each row must be such as {"text": "…", "label": "…"}.',
    )


def _json_name(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _from_parquet(path: Path, encoding: str) -> Iterator[Row]:
    del encoding  # parquet text is always utf-8
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"reading '{path.name}' needs pyarrow.", hint="pip install 'adaptree[parquet]'") from None
    number = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            _must_differ(file.schema_arrow.names, path)
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"'{path.name}' is damaged or no parquet file: {_one_line(error)}.", hint="Fetch or write it again."
        ) from None


FORMATS: dict[str, Callable[[Path, str], Iterator[Row]]] = {
    ".csv": _from_separated,
    ".tsv": _from_separated,
    ".jsonl": _from_lines,
    ".ndjson": _from_lines,
    ".json": _from_json,
    ".parquet": _from_parquet,
    ".txt": _from_text,
    ".conll": _from_columns,
    ".iob": _from_columns,
    ".iob2": _from_columns,
    ".bio": _from_columns,
}
