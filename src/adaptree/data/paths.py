"""Columns inside of nested rows: --text data.text, --label annotations.0.label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NOTHING = object()
DEEPEST = 8
"""How deep in a row a text is looked for."""


def asked_for(columns: Iterable[Any]) -> list[str]:
    """Return the names in what a user or a task gives as columns, of which one may be several with commas."""
    given = [column for column in columns if isinstance(column, str) and column]
    return list(dict.fromkeys(name for column in given for name in (column, *map(str.strip, column.split(",")))))


def with_paths(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the row with a column more for each name that is a path into it; a column of that name stays."""
    found = {name: value for name in names if name not in row and (value := _at(row, name)) is not _NOTHING}
    return {**row, **found} if found else row


def text_inside(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the path of a text inside of nested rows, the longest in the first of them; None where there is none."""
    found: dict[str, int] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping) and path.count(".") < DEEPEST:
            for key, each in value.items():
                walk(each, f"{path}.{key}" if path else str(key))
        elif isinstance(value, str) and "." in path:
            found[path] = len(value)

    for row in rows[:1]:
        walk(row, "")
    return max(found, key=lambda path: found[path], default=None)


def _at(value: Any, path: str) -> Any:
    """Return what is at a path such as annotations.0.label."""
    if isinstance(value, Mapping):
        if path in value:
            return value[path]
        head, dot, rest = path.partition(".")
        return _at(value[head], rest) if dot and head in value else _NOTHING
    head, dot, rest = path.partition(".")
    if isinstance(value, Sequence) and not isinstance(value, str) and head.isdecimal() and int(head) < len(value):
        return _at(value[int(head)], rest) if dot else value[int(head)]
    return _NOTHING
