"""How the rows of a file become the inputs and the targets of a kind of task."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.data.cells import as_text, is_empty
from adaptree.data.columns import guess, listed
from adaptree.errors import DataError, UsageError, near

if TYPE_CHECKING:
    from adaptree.data.dataset import Schema

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Form(ABC):
    """The form of one file. Inputs and targets are JSON values: they are kept as bytes, and parsed when needed."""

    needs: ClassVar[str] = ""
    """What a file must have, for the error where it does not."""
    input_columns: ClassVar[tuple[str, ...]] = ("text",)
    """Keys of `columns` that an input is made of; --text and --text-pair name the first two."""
    empty: ClassVar[Any] = None
    """The input that stands for a row without one, for kinds that can predict it."""
    one_value: ClassVar[bool] = False
    """Whether a target is one label or one number, which is kept in an array and not as JSON."""
    labels_of: ClassVar[str] = "rows"
    """What has labels: 'rows', or 'words' where a row has one for each word."""
    many_label_columns: ClassVar[bool] = False
    """Whether --label may name several columns, with commas between them."""
    has_labels: ClassVar[bool] = True
    """Whether there is a column of targets for --label to name."""
    merges_labels: ClassVar[bool] = False
    """Whether spellings of a label can be merged (`renamed`)."""
    columns: dict[str, str | None]
    """Which columns of the file are read, by their part; kept in a task's record."""
    why: str
    """Why the file is taken to be of this kind, as `adaptree check` says it."""

    @classmethod
    @abstractmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        """Return the form of a file with these column names and first rows; None when it has another.

        `columns` are those that the user named (text, pair, label, or None); raise DataError where one is missing.
        """

    @classmethod
    def like(
        cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None], schema: Schema
    ) -> Form:
        """Return the form of a file that must fit a schema; its columns are the schema's wherever the file has them."""
        form, why = cls.guess(names, sample, columns), f"as in '{schema.name}'"
        if form is None:
            return cls(dict(schema.columns), why)
        named = any(column is not None for column in columns.values())
        missing = any(name not in names for name in cls.column_names(schema.columns))
        return form if named or missing else replace(form, columns=dict(schema.columns), why=why)

    @staticmethod
    def column_names(columns: Mapping[str, Any]) -> list[str]:
        """Return the names of the file's columns that are read, of `columns` by their part."""
        return [column for column in columns.values() if column]

    @abstractmethod
    def input(self, row: Row, number: int, name: str) -> Any | None:
        """Return a row's input, None when it has none; raise DataError, with row and file, when it cannot be read."""

    @abstractmethod
    def target(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        """Return the target of the row's input `given`; None when the row has none."""

    @abstractmethod
    def text(self, given: Any) -> str | tuple[str, str]:
        """Return an input as plain text, or as a pair."""

    def key(self, given: Any) -> str:
        """Return a key that is equal for inputs that count as the same; those stay on one side of a split."""
        text = self.text(given)
        return " ".join((text if isinstance(text, str) else "\0".join(text)).split())

    def measured(self, given: Any) -> str | tuple[str, str]:
        """Return the text or pair whose length in tokens is that of the input's longest row."""
        return self.text(given)

    def blank_columns(self, given: Any) -> list[str]:
        """Return the columns that are empty in a row which has a text in another one."""
        return []

    def labels(self, target: Any) -> Iterable[str]:
        """Return the labels in a target; () for kinds without labels."""
        return ()

    def renamed(self, target: Any, names: Mapping[str, str]) -> Any:
        """Return a target with other names for some of its labels."""
        return target

    def pack(self, given: Any, target: Any) -> tuple[bytes, ...]:
        """Return an example as bytes: the first two parts are kept, all are in the data's digest."""
        return _json(given), _json(target)

    def for_prediction(self, first: Row, columns: Mapping[str, str | None], task: str) -> Form:
        """Return this form with inputs from the columns that a user names; `first` is a file's first row."""
        self._check_pair(columns, task)
        named = {key: columns[word] for key, word in zip(self.input_columns, ("text", "pair"), strict=False)
                 if columns.get(word)}  # fmt: skip
        form = replace(self, columns={**self.columns, **named})
        if missing := [
            column for key in self.input_columns if (column := form.columns.get(key)) and column not in first
        ]:
            raise DataError(
                f"no column '{missing[0]}', which the task '{task}' reads; the columns are {listed(list(first))}.",
                hint=near(missing[0], list(first)) or "--text COL --text-pair COL",
            )
        return form

    def takes_pair(self) -> bool:
        """Return whether an input has a second text, which --text-pair can name."""
        return any(self.columns.get(part) for part in self.input_columns[1:2])

    def _check_pair(self, columns: Mapping[str, str | None], task: str) -> None:
        if columns.get("pair") is not None and not self.takes_pair():
            raise UsageError(f"the task '{task}' takes one text.", hint="Leave out --text-pair.")

    def read(self, row: Row, number: int, name: str) -> Any:
        """Return the input of a row to predict; raise DataError when it has none."""
        given = self.input(row, number, name)
        if given is None and self.empty is None:
            columns = listed([column for key in self.input_columns if (column := self.columns.get(key))])
            raise DataError(
                f"row {number} of '{name}' has nothing in {columns}.", hint="Fill it in, or remove the row."
            )
        return self.empty if given is None else given


@dataclass(frozen=True)
class TextForm(Form):
    """Inputs are one text, or the two of a pair; subclasses read the targets."""

    input_columns: ClassVar[tuple[str, ...]] = ("text", "pair")

    def _texts(self, row: Row, number: int, name: str) -> str | tuple[str, str]:
        text, pair = str(self.columns["text"]), self.columns.get("pair")
        first = as_text(row.get(text), number, text, name)
        return first if pair is None else (first, as_text(row.get(pair), number, pair, name))

    def input(self, row: Row, number: int, name: str) -> str | tuple[str, str] | None:
        given = self._texts(row, number, name)
        blank = is_empty(given) if isinstance(given, str) else all(map(is_empty, given))
        return None if blank else given

    def text(self, given: Any) -> str | tuple[str, str]:
        return given if isinstance(given, str) else (given[0], given[1])

    def blank_columns(self, given: Any) -> list[str]:
        if isinstance(given, str):
            return []
        parts = zip(self.input_columns, given, strict=True)
        return [str(self.columns[part]) for part, text in parts if is_empty(text)]

    def for_prediction(self, first: Row, columns: Mapping[str, str | None], task: str) -> Form:
        """Return this form; where the file lacks the columns that the task was trained on, others are guessed."""
        self._check_pair(columns, task)
        text, pair = columns.get("text"), columns.get("pair")
        trained = self.columns["text"], self.columns.get("pair")
        if text is None and pair is None and trained[0] in first and (trained[1] is None or trained[1] in first):
            return self
        found = guess(list(first), [first], text=text, pair=pair, need_label=False, pairs=trained[1] is not None)
        if trained[1] and not found.pair:
            raise DataError(
                f"the task '{task}' takes two texts, and one column of text was found ('{found.text}').",
                hint="--text COL --text-pair COL",
            )
        return replace(self, columns={**self.columns, "text": found.text, "pair": found.pair})

    def read(self, row: Row, number: int, name: str) -> str | tuple[str, str]:
        return self._texts(row, number, name)  # an empty text has a prediction too, without a label


@dataclass(frozen=True)
class LabelForm(TextForm):
    """A text or a pair, and one label or number. Texts are kept as they are, so that long files are read quickly."""

    needs: ClassVar[str] = "A text, and a label."
    one_value: ClassVar[bool] = True
    merges_labels: ClassVar[bool] = True

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> LabelForm:
        found = guess(names, sample, text=columns.get("text"), pair=columns.get("pair"), label=columns.get("label"))
        return cls({"text": found.text, "pair": found.pair, "label": found.label}, "")

    @classmethod
    def like(
        cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None], schema: Schema
    ) -> LabelForm:
        wanted = {part: schema.columns.get(part) for part in ("text", "pair", "label")}
        named = any(column is not None for column in columns.values())
        if not named and all(column is None or column in names for column in wanted.values()):
            return cls(wanted, "")
        form = cls.guess(names, sample, columns)
        if (form.columns["pair"] is None) != (wanted["pair"] is None):
            one, two = ("one text", "two") if form.columns["pair"] is None else ("two texts", "one")
            raise DataError(
                f"the file has {one} a row, '{schema.name}' has {two}.", hint="Say which: --text COL --text-pair COL"
            )
        return form

    def target(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        return row.get(str(self.columns["label"]))

    def key(self, given: Any) -> str:
        return " ".join(given.split()) if isinstance(given, str) else "\0".join(" ".join(t.split()) for t in given)

    def pack(self, given: Any, target: Any) -> tuple[bytes, ...]:
        first, second = (given, "") if isinstance(given, str) else given
        # half a surrogate pair, which JSON can hold, is no text
        return first.encode(errors="replace"), second.encode(errors="replace"), target.encode(errors="replace")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")
