"""Open a data file as examples of a kind: the one that the user names, or the first that the file fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.data.columns import free_texts, listed, must_have
from adaptree.data.dataset import Dataset, Schema, build
from adaptree.data.events import Listener, silent
from adaptree.data.form import Form
from adaptree.data.paths import asked_for, text_inside, with_paths
from adaptree.data.read import Row, Source, name_of, rows
from adaptree.errors import DataError

if TYPE_CHECKING:
    from adaptree.kinds.kind import Kind
    from adaptree.tasks.record import Record

SAMPLE_ROWS, SAMPLE_CHARACTERS = 500, 4 << 20
"""How much of a file its form is guessed from."""
REPORTED = 20_000
"""Rows from one `reading` event to the next."""
Columns = Mapping[str, str | None]
"""Columns that the user named: text, pair and label."""
Reader = Callable[[Mapping[str, Any], int, str], Any]
"""A function of a row, its number and the file's name, which returns the row's input."""


def open_data(
    source: Source,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    merge_labels: bool = False,
    like: Schema | None = None,
    unknown: bool = False,
    weight: str | None = None,
    aside: str | None = None,
    on_event: Listener = silent,
) -> Dataset:
    """Read a file once; `like` gives a validation or test file the columns, kind and labels of the training file.

    With `merge_labels`, labels that differ only in case, blanks or the like are one. With `unknown`, labels that `like`
    does not have are counted, not refused. `weight` names the column with the rows' weights, `aside` one that
    is neither input nor target. `reading` events report how many rows of a long file have been read.
    """
    name = name_of(source)
    asked = asked_for([text, pair, label, weight, aside, *(like.columns.values() if like is not None else ())])
    stream = rows(source, encoding=encoding, no_header=no_header, columns=asked, on_event=on_event)
    nested = [column for column in asked if "." in column]
    if nested:
        stream = ((number, with_paths(row, nested)) for number, row in stream)
    sample, stream = _peek(_reporting(stream, name, on_event))
    names = list(dict.fromkeys(itertools.chain.from_iterable(sample)))
    columns = {"text": text, "pair": pair, "label": label}
    options = {"text_pair": pair, "label": label, "merge_labels": merge_labels}
    known = kind if like is None else like.kind
    if known is not None:
        kinds.check_options(kinds.get(known), options)
    for option, column in (("--weight", weight), ("--split", aside)):
        if column is not None:
            must_have(names, [column])
            if column in columns.values():
                raise DataError(f"column '{column}' cannot be used twice.", hint=f"{option} is a column of its own.")
            names.remove(column)
    if like is not None:
        owner = kinds.get(like.kind)
        form, owners = owner.form.like(names, sample, columns, like), [owner]
    else:
        try:
            form, owners = _guess(name, names, sample, columns, kind)
        except DataError as error:
            if (inside := text_inside(sample)) is None or nested:
                raise
            raise DataError(error.what, hint=f"Name what is inside of them: --text {inside} --label …") from None
    found = build(
        name, form, owners, stream, sample=sample, schema=like, unknown=unknown, merge=merge_labels, weight=weight
    )
    kinds.check_options(kinds.get(found.kind), options)
    used = form.column_names(form.columns)
    found.unused = [column for column in names if not _is_used(column, used)]
    found.unused_texts = free_texts(found.unused, sample) if text is None else []
    return found


def _is_used(column: str, used: Sequence[str]) -> bool:
    """Return whether a column is read, or something inside of it (`data` by the path `data.text`)."""
    return any(name == column or name.startswith(f"{column}.") for name in used)


def reader_for(task: Record, first: Mapping[str, Any], columns: Columns) -> Reader:
    """Return a function that reads a task's inputs from the rows of a file, of which `first` is the first.

    It reads the columns that the user named, else those that the task was trained on.
    """
    return _form(task).for_prediction(first, columns, task.name).read


def takes_pair(task: Record) -> bool:
    """Return whether a task's inputs have a second text, which --text-pair can name."""
    return _form(task).takes_pair()


def _form(task: Record) -> Form:
    return kinds.get(task.kind).form(dict(task.columns), "")


def _guess(
    name: str, names: Sequence[str], sample: Sequence[Mapping[str, Any]], columns: Columns, kind: str | None
) -> tuple[Form, list[type[Kind]]]:
    """Return the form of a file, and the kinds that have it: the labels decide among those."""
    tried = _candidates(name, names, columns.get("label"), kind)
    for each in tried:
        form = each.form.guess(names, sample, columns)
        if form is not None:
            return form, [other for other in tried if other.form is each.form]
    needs = f"kind {kind} needs" if kind else "any kind needs"
    raise DataError(
        f"'{name}' lacks what {needs}; its columns are {listed(names)}.",
        hint=kinds.get(kind).form.needs if kind else "",
    )


def _candidates(name: str, names: Sequence[str], label: str | None, kind: str | None) -> list[type[Kind]]:
    """Return the kinds that a file may be of, in the order in which they are tried."""
    if kind is not None:
        kinds.get(kind)
        found = [each for each in kinds.KINDS.values() if kind in (each.name, each.family)]
    else:
        kinds.load_plugins(strict=False)
        ends = set(Path(name).suffixes[-2:])
        if names != ["text"]:
            ends -= {".txt"}  # it holds a table or labels, and is not plain text
        found = [
            each
            for each in kinds.KINDS.values()
            if each.priority is not None and (not each.endings or ends & set(each.endings))
        ]
        if label and label not in names and "," in label:
            found = [each for each in found if each.form.many_label_columns]
    return sorted(found, key=lambda each: (each.priority is None, each.priority or 0, each.name))


def _peek(stream: Iterator[Row]) -> tuple[list[dict[str, Any]], Iterator[Row]]:
    """Return the first rows without their numbers, and all rows from the first on."""
    first: list[Row] = []
    characters = 0
    for item in stream:
        first.append(item)
        characters += sum(len(value) for value in item[1].values() if isinstance(value, str))
        if len(first) >= SAMPLE_ROWS or characters > SAMPLE_CHARACTERS:
            break
    return [row for _, row in first], itertools.chain(first, stream)


def _reporting(stream: Iterator[Row], name: str, on_event: Listener) -> Iterator[Row]:
    """Yield the rows of a stream, and send an event with their number from time to time."""
    count = 0
    for count, row in enumerate(stream, 1):
        if count % REPORTED == 0:
            on_event({"event": "reading", "name": name, "rows": count, "done": False})
        yield row
    if count >= REPORTED:
        on_event({"event": "reading", "name": name, "rows": count, "done": True})
