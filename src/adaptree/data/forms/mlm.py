"""Plain text, whose own words are what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adaptree.data.columns import guess
from adaptree.data.forms.form import Form, Row
from adaptree.data.table import as_text


@dataclass(frozen=True)
class MlmForm(Form):
    """One column of text; no labels."""

    kind: ClassVar[str] = "mlm"
    needs: ClassVar[str] = "A column of text."
    nothing: ClassVar[Any] = ""

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None]) -> Form | None:
        found = guess(names, sample, text=said.get("text"), need_label=False)
        return cls({"text": found.text}, "its words are learned, and no label is needed")

    def input(self, row: Row, number: int, name: str) -> Any | None:
        column = str(self.columns["text"])
        text = as_text(row.get(column), number, column, name)
        return text if text.strip() else None

    def gold(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        return True

    def key(self, given: Any) -> str:
        return str(given)
