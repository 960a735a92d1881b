"""Rows of JSON files: one object a line, an array of objects, SQuAD's own files, Label Studio's exports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from adaptree.data import label_studio
from adaptree.data.files import CHUNK, LARGEST_ROW, File, RowTooLong, one_line
from adaptree.data.squad import read_articles
from adaptree.errors import DataError

Row = tuple[int, dict[str, Any]]
NESTED = re.compile(r'\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[')  # how SQuAD's own files begin


def read_json(file: File) -> Iterator[Row]:
    """Yield the objects of an array, the objects of lines, or the questions of SQuAD's files."""
    start = file.start().lstrip()
    if start.startswith("["):
        yield from _exported(file, _array)
    elif NESTED.match(start):
        yield from read_articles(value for _, value in _values(file, NESTED))
    else:
        yield from _exported(file, _lines)


def read_lines(file: File) -> Iterator[Row]:
    """Yield the object of each line."""
    return _exported(file, _lines)


def _exported(file: File, read: Callable[[File], Iterator[Row]]) -> Iterator[Row]:
    """Yield a file's objects; those of Label Studio as plain rows, unless the user names columns inside of them."""
    stream = read(file)
    first = next(stream, None)
    if first is None:
        return
    if label_studio.is_export(first[1], file.columns):
        yield from label_studio.read_export(file, read)
        return
    yield first
    yield from stream


def _lines(file: File) -> Iterator[Row]:
    with file.text() as stream:
        for line, text in enumerate(stream, 1):
            if text.strip():
                try:
                    value = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise _broken(file, line, error) from None
                yield line, _must_be_object(value, line, file)


def _array(file: File) -> Iterator[Row]:
    for number, value in _values(file, re.compile(r"\[")):
        yield number, _must_be_object(value, number, file)


def _values(file: File, begin: re.Pattern[str]) -> Iterator[tuple[int, Any]]:
    """Yield the values of the array that begins where the pattern ends, with no more in memory than a chunk and one."""
    decoder = json.JSONDecoder()
    with file.text() as stream:
        buffer = stream.read(CHUNK)
        found = begin.search(buffer)
        assert found is not None
        at = found.end()
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
                if len(buffer) - at > LARGEST_ROW:
                    raise RowTooLong from None
                if not more:
                    extra = buffer.count("\n", at, error.pos) if isinstance(error, json.JSONDecodeError) else 0
                    raise _broken(file, done + extra + 1, error) from None
                buffer, at = buffer[at:] + more, 0
                continue
            number += 1
            yield number, value
            done += buffer.count("\n", at, end)
            at = end


def _cut_off(error: Exception, size: int) -> bool:
    """Return whether a decoding error may only mean that the buffer ends here."""
    return isinstance(error, json.JSONDecodeError) and (error.msg.startswith("Unterminated") or error.pos > size - 16)


def _broken(file: File, line: int, error: Exception) -> DataError:
    why = error.msg if isinstance(error, json.JSONDecodeError) else one_line(error)
    return DataError(
        f"line {line} of '{file.name}' is broken JSON: {why}.",
        hint="Each line must be one whole object." if file.ending != ".json" else "An array of objects is needed.",
    )


def _must_be_object(value: Any, number: int, file: File) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    raise DataError(
        f"row {number} of '{file.name}' is a JSON {names.get(type(value), 'number')}, not an object.",
        hint='Each row must be such as {"text": "…", "label": "…"}.',
    )
