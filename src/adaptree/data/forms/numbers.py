"""Texts with several numbers each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adaptree.data.columns import guess
from adaptree.data.forms.form import Form, Row
from adaptree.data.forms.labels import text_of
from adaptree.errors import DataError


@dataclass(frozen=True)
class NumbersForm(Form):
    """A column for each number (--label warmth,fear), or one column that holds lists of them."""

    kind: ClassVar[str] = "regress"
    needs: ClassVar[str] = "A text, and several columns of numbers."

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None]) -> Form | None:
        label = said.get("label")
        several = [name.strip() for name in label.split(",")] if label and label not in names else []
        if len(several) < 2 or any(name not in names for name in several):
            return None
        rest = [name for name in names if name not in several]
        found = guess(rest, sample, text=said.get("text"), pair=said.get("pair"), need_label=False)
        columns = {"text": found.text, "pair": found.pair, "numbers": ",".join(several)}
        return cls(columns, f"{', '.join(repr(name) for name in several)} are numbers")

    @property
    def names(self) -> list[str]:
        return str(self.columns["numbers"]).split(",")

    def input(self, row: Row, number: int, name: str) -> Any | None:
        return text_of(self.columns, row, number, name)

    def gold(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        values = []
        for column in self.names:
            value = row.get(column)
            if value is None or (isinstance(value, str) and not value.strip()):
                return None
            try:
                values.append(float(value))
            except (TypeError, ValueError):
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                raise DataError(
                    f"row {number} of '{name}': '{str(value)[:60]}' in column '{column}' is not a finite number.",
                    hint="Correct or remove the row.",
                )
        return values

    def key(self, given: Any) -> str:
        return given if isinstance(given, str) else "\0".join(given)
