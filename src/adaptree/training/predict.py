"""Prediction for the rows of a file or for lines of text: in order, and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Listener, silent
from adaptree.data.paths import asked_for, with_paths
from adaptree.data.read import Source, name_of
from adaptree.data.read import rows as read_rows
from adaptree.kinds.reading import Reader

if TYPE_CHECKING:
    from adaptree.models.bound import Bound
    from adaptree.models.several import MultiTask

CHUNK = 4096
"""Rows that are predicted together: a file may be larger than memory."""


def inputs_of(
    bound: Bound,
    data: Source,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    on_event: Listener = silent,
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each row of a file and the task's input that it holds."""
    reader: Reader | None = None
    name = name_of(data)
    asked = columns_of(bound, text, text_pair)
    nested = [column for column in asked if "." in column]
    for number, row in read_rows(data, encoding=encoding, no_header=no_header, columns=asked, on_event=on_event):
        whole = with_paths(row, nested)
        reader = reader or bound.reader(whole, {"text": text, "pair": text_pair, "label": None})
        yield row, reader(whole, number, name)


def columns_of(bound: Bound | MultiTask, *named: str | None) -> list[str]:
    """Return the columns that are asked of a file: those that the user names, and those of the task or tasks."""
    bounds: Any = getattr(bound, "parts", {"": bound}).values()
    return asked_for([*named, *(column for each in bounds for column in each.columns.values())])


def predict_rows(
    bound: Bound,
    data: Source,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    min_score: float | None = None,
    on_event: Listener = silent,
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each row of a file, unchanged, with the task's prediction."""
    pairs = inputs_of(
        bound, data, text=text, text_pair=text_pair, encoding=encoding, no_header=no_header, on_event=on_event
    )
    while chunk := list(islice(pairs, CHUNK)):
        predictions = bound.answer([each for _, each in chunk], min_score)
        yield from zip((row for row, _ in chunk), predictions, strict=True)


def predict_lines(bound: Bound, lines: Iterable[str], *, min_score: float | None = None) -> Iterator[tuple[str, Any]]:
    """Yield each line that a user typed with the task's prediction, some lines at a time."""
    lines = iter(lines)
    while chunk := list(islice(lines, 1024)):
        yield from zip(chunk, bound.answer([bound.line(line) for line in chunk], min_score), strict=True)
