"""Questions with several answers of which one is right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adaptree.data.forms.form import Form, Row
from adaptree.errors import DataError

QUESTIONS = ("question", "text", "sentence", "context", "prompt", "premise", "stem", "query", "startphrase", "ctx")
CHOICES = ("choices", "options", "endings", "answers", "candidates")
LABELS = ("label", "answer", "answerkey", "answer_key", "correct", "gold", "target")
NUMBERED = re.compile(r"(option|choice|ending|answer|candidate|sol)_?([0-9]|[a-h])", re.IGNORECASE)
LETTERS = "ABCDEFGH"
MOST = 100


@dataclass(frozen=True)
class ChooseForm(Form):
    """A text, its choices, and which is right: as a number, a letter or the choice itself.

    Choices are a list in one column, or columns such as option1, option2. A text with a single '_' has the choice put
    in its place; else the choice stands beside the text.
    """

    kind: ClassVar[str] = "choose"
    needs: ClassVar[str] = "A question, its choices (a list, or option1, option2, …), and which is right."
    asked: ClassVar[tuple[str, ...]] = ("text", "choices", "choice0", "choice1")
    counted_from: int = 0
    """What number the first choice has, where the right one is given by number."""

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None]) -> Form | None:
        for column in said.values():
            if column is not None and column not in names:
                listed = ", ".join(f"'{name}'" for name in names[:20])
                raise DataError(f"no column '{column}'; the columns are {listed}.")
        plain = {name.strip().casefold().replace(" ", "_"): name for name in reversed(names)}
        numbered = [name for name in names if NUMBERED.fullmatch(name.strip())]
        whole = next((plain[name] for name in CHOICES if name in plain and _lists(plain[name], sample)), None)
        if whole is None and len(numbered) < 2:
            return None
        taken = {whole} if whole else set(numbered)
        text = said.get("text") or next((plain[n] for n in QUESTIONS if n in plain and plain[n] not in taken), None)
        label = said.get("label") or next((plain[n] for n in LABELS if n in plain and plain[n] not in taken), None)
        if text is None:
            return None
        columns: dict[str, str | None] = {"text": text, "label": label, "choices": whole}
        columns |= {} if whole else {f"choice{i}": name for i, name in enumerate(numbered)}
        shown = (
            f"'{whole}' holds lists" if whole else f"{', '.join(repr(name) for name in numbered)} stand side by side"
        )
        why = f"{shown}, and one of them is right"
        first = cls._first(cls(columns, why), sample)
        form = cls(columns, why, first)
        if label is not None and not any(_fits(form, row) for row in sample):
            return None
        return form

    def _first(self, sample: Sequence[Row]) -> int:
        """0 or 1: what the sample's numbers say, and where they could be both, what columns option1, … suggest."""
        numbers = [_number(row.get(str(self.columns["label"]))) for row in sample]
        known = [number for number in numbers if number is not None]
        if 0 in known:
            return 0
        most = max((len(found) for row in sample if (found := self._choices(row))), default=0)
        return int(most in known or str(self.columns.get("choice0", "")).endswith("1"))

    def input(self, row: Row, number: int, name: str) -> Any | None:
        text = row.get(str(self.columns["text"]))
        if isinstance(text, Mapping):  # the question of CommonsenseQA as it is published
            text = text.get("stem")
        if not isinstance(text, str):
            return None
        found = self._choices(row)
        if found is None:
            return None
        if not 2 <= len(found) <= MOST:
            raise DataError(
                f"row {number} of '{name}' has {len(found)} choices; 2 to {MOST} are needed.", hint="Correct the row."
            )
        return {"text": text, "choices": found}

    def _choices(self, row: Row) -> list[str] | None:
        column = self.columns.get("choices")
        if column is None:
            values: list[Any] | None = [
                row.get(str(name)) for key, name in self.columns.items() if key.startswith("choice") and name
            ]
        else:
            values = _listed(row.get(column))
        if not values or any(value is None for value in values):
            return None
        return [str(value) for value in values]

    def gold(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        if self.columns["label"] is None:
            return None
        value = row.get(str(self.columns["label"]))
        if value is None or value == "":
            return None
        place = _place(value, given["choices"], self._names(row), self.counted_from)
        if place is None:
            raise DataError(
                f"row {number} of '{name}': '{str(value)[:60]}' names none of its {len(given['choices'])} choices.",
                hint="Give the choice's number, its letter, or its text.",
            )
        return place

    def _names(self, row: Row) -> list[str] | None:
        """What the choices are called, where a row says so ('A', 'B', …)."""
        value = row.get(str(self.columns.get("choices")))
        if isinstance(value, Mapping) and isinstance(value.get("label"), list):
            return [str(label) for label in value["label"]]
        if isinstance(value, list) and value and all(isinstance(v, Mapping) and "label" in v for v in value):
            return [str(v["label"]) for v in value]
        return None

    def key(self, given: Any) -> str:
        return str(given["text"])


def _lists(name: str, sample: Sequence[Row]) -> bool:
    return any(len(_listed(row.get(name)) or ()) > 1 for row in sample)


def _listed(value: Any) -> list[Any] | None:
    """A list of choices; also {"text": […], "label": […]} and [{"text": …, "label": …}, …], as datasets have them."""
    if isinstance(value, Mapping):
        value = value.get("text")
    if not isinstance(value, list | tuple):
        return None
    return [item.get("text") if isinstance(item, Mapping) else item for item in value]


def _fits(form: ChooseForm, row: Row) -> bool:
    try:
        given = form.input(row, 0, "")
        return given is not None and form.gold(row, given, 0, "") is not None
    except DataError:
        return False


def _number(value: Any) -> int | None:
    try:
        return int(float(value)) if float(value).is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _place(value: Any, choices: Sequence[str], names: Sequence[str] | None, counted_from: int) -> int | None:
    spelled = str(value).strip()
    if names is not None and spelled in names:
        return names.index(spelled)
    if spelled in choices:
        return list(choices).index(spelled)
    letter = spelled.upper().strip("().")
    if (number := _number(spelled)) is not None:
        place = number - counted_from
    else:
        place = LETTERS.index(letter) if len(letter) == 1 and letter in LETTERS else -1
    return place if 0 <= place < len(choices) else None
