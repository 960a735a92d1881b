"""Texts with any number of labels each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adaptree.data.columns import guess
from adaptree.data.forms.form import Form, Row
from adaptree.data.table import as_text
from adaptree.errors import DataError

SEPARATORS = ("|", ";", ",")
SEVERAL = 0.1
"""Which share of the rows must have several parts before a text is taken for several labels."""
LONGEST = 40
"""Characters of a part that may be a label."""


@dataclass(frozen=True)
class LabelsForm(Form):
    """A list of labels in one column, or a text in which a mark separates them, or a column of 0 and 1 for each."""

    kind: ClassVar[str] = "classify"
    needs: ClassVar[str] = "A text, and a list of labels."

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None]) -> Form | None:
        label = said.get("label")
        several = [name.strip() for name in label.split(",")] if label and label not in names else []
        if len(several) > 1:
            return cls._of_columns(names, sample, said, several)
        try:
            found = guess(names, sample, text=said.get("text"), pair=said.get("pair"), label=label)
        except DataError:
            return None  # what is amiss is said by whoever reads one label a row
        values = [row.get(str(found.label)) for row in sample]
        separator = _separator(values)
        if separator is None:
            return None
        columns = {"text": found.text, "pair": found.pair, "labels": found.label, "separator": separator}
        shown = "holds lists" if not separator else f"has several labels in a row, separated by '{separator}'"
        return cls(columns, f"'{found.label}' {shown}")

    @classmethod
    def _of_columns(
        cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None], several: Sequence[str]
    ) -> Form | None:
        for name in several:
            if name not in names:
                raise DataError(f"no column '{name}'; the columns are {', '.join(repr(n) for n in names[:20])}.")
        if not all(_flag(row.get(name)) is not None for row in sample for name in several):
            return None
        rest = [name for name in names if name not in several]
        found = guess(rest, sample, text=said.get("text"), pair=said.get("pair"), need_label=False)
        columns = {"text": found.text, "pair": found.pair, "labels": ",".join(several), "separator": None}
        return cls(columns, f"{', '.join(repr(name) for name in several)} say 0 or 1")

    def input(self, row: Row, number: int, name: str) -> Any | None:
        return text_of(self.columns, row, number, name)

    def gold(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        column, separator = str(self.columns["labels"]), self.columns["separator"]
        if separator is None:
            flags = {each: _flag(row.get(each)) for each in column.split(",")}
            if None in flags.values():
                bad = next(each for each, flag in flags.items() if flag is None)
                raise DataError(f"row {number} of '{name}': '{row.get(bad)}' in column '{bad}' is not 0 or 1.")
            return [each for each, flag in flags.items() if flag]
        value = row.get(column)
        if value is None:
            return None
        parts = value if isinstance(value, list | tuple) else str(value).split(separator or "\0")
        if any(isinstance(part, list | tuple | Mapping) for part in parts):
            raise DataError(f"row {number} of '{name}': a label in '{column}' is itself a list.")
        return sorted({spelled for part in parts if (spelled := str(part).strip())})

    def key(self, given: Any) -> str:
        return given if isinstance(given, str) else "\0".join(given)

    def labels(self, gold: Any) -> Iterable[str]:
        return list(gold)


def text_of(columns: Mapping[str, str | None], row: Row, number: int, name: str) -> Any | None:
    """A text, or a list of the two of a pair; None where there is none."""
    parts = [as_text(row.get(column), number, column, name) for key in ("text", "pair") if (column := columns.get(key))]
    if not any(part.strip() for part in parts):
        return None
    return parts[0] if len(parts) == 1 else parts


def _flag(value: Any) -> bool | None:
    spelled = str(value).strip().casefold()
    if spelled in ("1", "1.0", "true", "yes"):
        return True
    return False if spelled in ("0", "0.0", "false", "no", "") else None


def _separator(values: Sequence[Any]) -> str | None:
    """What separates the labels of a row: '' for lists; None when rows have one label each."""
    if any(isinstance(value, list | tuple) for value in values):
        return ""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    for mark in SEPARATORS:
        rows = [[part.strip() for part in text.split(mark)] for text in texts]
        many = sum(len(parts) > 1 for parts in rows)
        parts = {part for row in rows for part in row if part}
        short = all(len(part) <= LONGEST for part in parts)
        # The same few parts come back in other combinations; a name that happens to hold the mark does not.
        if many > SEVERAL * len(texts) and short and len(parts) < len(set(texts)) and 2 * len(parts) <= len(texts):
            return mark
    return None
