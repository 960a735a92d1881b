"""Open a data file as what it is: texts with labels, or inputs of another kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from adaptree.data import records, table
from adaptree.data.columns import Columns, guess
from adaptree.data.forms.form import Form
from adaptree.data.read import Row, Source, rows
from adaptree.data.records import Records
from adaptree.data.table import Table, as_text
from adaptree.errors import DataError, UsageError, near

Data = Table | Records
KINDS = ("classify", "regress", "tag", "answer", "choose", "mlm")
TOLD = 20_000
"""Rows from one sign of life to the next."""
FORMS = {
    "tag": "TagForm",
    "answer": "AnswerForm",
    "choose": "ChooseForm",
    "labels": "LabelsForm",
    "numbers": "NumbersForm",
    "mlm": "MlmForm",
}
"""By module, in the order in which a file is tried; what none of them takes has one text or a pair and one label."""
OF_KIND = {"classify": ("labels",), "regress": ("numbers",), None: ("tag", "answer", "choose", "labels", "numbers")}
"""Which forms a file of a kind may have beside that; any text would do for mlm, so that has to be asked for."""


class Like(Protocol):
    """What a validation or test file must fit: a file opened before, or what a task's record says of one."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def labels(self) -> tuple[Any, ...]: ...
    @property
    def said(self) -> Mapping[str, Any]: ...


def kind_of(name: str | None) -> str | None:
    """The same; a kind that there is not is refused."""
    if name is not None and name not in KINDS:
        raise UsageError(f"no kind '{name}'.", hint=near(name, KINDS) or f"There are: {', '.join(KINDS)}.")
    return name


def open_data(
    source: Source,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    encoding: str = "utf-8",
    like: Like | None = None,
    need_label: bool = True,
    unknown: bool = False,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Data:
    """Read a file once; `like` gives a validation or test file the columns, kind and labels of the training file.

    With `unknown`, labels that `like` does not have are counted, and not refused. A long file's `reading` events say
    how far it is.
    """
    name = table.name_of(source)
    sample, stream = table.peek(_counted(rows(source, encoding=encoding), name, on_event))
    said = {"text": text, "pair": pair, "label": label}
    first = [row for _, row in sample]
    names = list(dict.fromkeys(column for row in first for column in row))
    form = _form(name, names, first, said, like.kind if like else kind, like)
    if form is not None:
        labels = None if like is None else tuple(like.labels)
        return records.of_rows(name, form, stream, labels=labels, need_label=need_label)
    fits: Any = None if like is None else _Fits(like)
    asked: Any = kind
    return table.of_rows(
        name,
        sample,
        stream,
        text=text,
        pair=pair,
        label=label,
        kind=asked,
        like=fits,
        need_label=need_label,
        unknown=unknown,
    )


def _counted(stream: Iterator[Row], name: str, on_event: Callable[[dict[str, Any]], None]) -> Iterator[Row]:
    """The same rows; every so many of them are told."""
    count = 0
    for count, row in enumerate(stream, 1):
        if count % TOLD == 0:
            on_event({"event": "reading", "name": name, "rows": count, "done": False})
        yield row
    if count >= TOLD:
        on_event({"event": "reading", "name": name, "rows": count, "done": True})


class _Fits:
    """What a table of texts and labels must be like."""

    def __init__(self, like: Like) -> None:
        self.name, self.kind, self.labels = like.name, like.kind, like.labels
        self.columns = Columns(like.said["text"], like.said.get("pair"), like.said.get("label"))


Reader = Callable[[Mapping[str, Any], int, str], Any]
"""Makes an input of a row, its number and the file's name."""


class Asked(Protocol):
    """A task, as far as it says what it was trained on."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def columns(self) -> Mapping[str, Any]: ...


def reader_for(task: Asked, first: Mapping[str, Any], asked: Mapping[str, str | None]) -> Reader:
    """How the rows of a file become a task's inputs: by the columns asked for, else those trained on, else a guess."""
    said = task.columns
    which = next((name for name in ("labels", "numbers") if name in said), task.kind)
    if which not in FORMS or which in ("labels", "numbers"):
        text, pair = _text_columns(task, first, asked)
        columns: dict[str, str | None] = {"text": text, "pair": pair}
        return lambda row, number, name: _text(columns, row, number, name)
    form = _class(which)(dict(said), "").reading(asked)
    if missing := [column for key in form.asked if (column := form.columns.get(key)) and column not in first]:
        listed = ", ".join(f"'{column}'" for column in list(first)[:20])
        raise DataError(
            f"no column '{missing[0]}', which the task '{task.name}' reads; the columns are {listed}.",
            hint=near(missing[0], list(first)) or "--text COL --text-pair COL",
        )

    def read(row: Mapping[str, Any], number: int, name: str) -> Any:
        given = form.input(row, number, name)
        if given is None and form.nothing is not None:
            return form.nothing
        if given is None:
            listed = ", ".join(f"'{form.columns[key]}'" for key in form.asked if form.columns.get(key))
            raise DataError(f"row {number} of '{name}' has nothing in {listed}.", hint="Fill it in, or remove the row.")
        return given

    return read


def _text(columns: Mapping[str, str | None], row: Mapping[str, Any], number: int, name: str) -> Any:
    parts = [as_text(row.get(column), number, column, name) for column in columns.values() if column]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _text_columns(task: Asked, row: Mapping[str, Any], asked: Mapping[str, str | None]) -> tuple[str, str | None]:
    text, pair = asked.get("text"), asked.get("pair")
    trained = task.columns["text"], task.columns.get("pair")
    if text is None and pair is None and trained[0] in row and (trained[1] is None or trained[1] in row):
        return trained
    found = guess(list(row), [row], text=text, pair=pair, need_label=False)
    if trained[1] and not found.pair:
        raise DataError(
            f"the task '{task.name}' takes two texts, and one column of text was found ('{found.text}').",
            hint="--text COL --text-pair COL",
        )
    return found.text, found.pair if trained[1] else None


def _form(
    name: str,
    names: list[str],
    sample: list[dict[str, Any]],
    said: Mapping[str, str | None],
    kind: str | None,
    like: Like | None,
) -> Form | None:
    if like is not None:
        return _like(names, sample, said, like)
    label = said.get("label")
    tried = ("labels", "numbers") if label and label not in names and "," in label else OF_KIND.get(kind, (kind,))
    form = next((found for each in tried if each and (found := _class(each).guess(names, sample, said))), None)
    if form is None and kind is None and ".txt" in Path(name).suffixes[-2:]:  # nothing but its words can be learned
        form = _class("mlm").guess(names, sample, said)
    if form is None and kind in FORMS:
        listed = ", ".join(f"'{column}'" for column in names[:20])
        raise DataError(f"'{name}' has not what kind {kind} needs; its columns are {listed}.", hint=_class(kind).needs)
    return form


def _like(names: list[str], sample: list[dict[str, Any]], said: Mapping[str, str | None], like: Like) -> Form | None:
    """The form of a file that must be like another: with the same columns where it has them."""
    which = next((name for name in ("labels", "numbers") if name in like.said), like.kind)
    if which not in FORMS:
        return None
    asked = any(column is not None for column in said.values())
    form = _class(which).guess(names, sample, said)
    if form is not None and not asked and _has(names, like.said):
        return replace(form, columns=dict(like.said), why=f"as in '{like.name}'")
    return form if form is not None else _class(which)(dict(like.said), f"as in '{like.name}'")


def _has(names: list[str], said: Mapping[str, Any]) -> bool:
    aside = ("separator",)
    wanted = [part for key, column in said.items() if column and key not in aside for part in _split(column, names)]
    return all(column in names for column in wanted)


def _split(column: str, names: list[str]) -> list[str]:
    return [column] if column in names else column.split(",")


def _class(kind: str) -> type[Form]:
    found: type[Form] = getattr(import_module(f"adaptree.data.forms.{kind}"), FORMS[kind])
    return found
