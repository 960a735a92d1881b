"""Questions whose answers are parts of a context: SQuAD's rows, or columns with a question, a context and an answer."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adaptree.data.forms.form import Form, Row
from adaptree.errors import DataError, near

NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("question",),
    "context": ("context", "passage", "paragraph", "document"),
    "answers": ("answers", "answer", "answer_text"),
    "start": ("answer_start", "start"),
    "impossible": ("is_impossible",),
    "id": ("id",),
}
SAID = {"question": "text", "context": "pair", "answers": "label"}
VERDICTS = frozenset({"yes", "no", "true", "false", "maybe", "0", "1"})
"""What a file of yes/no questions holds, and what may stand in a passage by chance."""
NEARBY = 32
"""How many characters a start may be off; SQuAD's are by one or two, those counted in bytes by more."""
MOST = 0.8
"""The share of a sample's answers that must stand in their contexts for a file to be of this kind."""


@dataclass(frozen=True)
class AnswerForm(Form):
    """Inputs are {"question", "context"}, targets {"answers": [{"text", "start"}], "id"}; [] where there is none."""

    kind: ClassVar[str] = "answer"
    needs: ClassVar[str] = "A question, a context, and an answer that stands in it."
    asked: ClassVar[tuple[str, ...]] = ("question", "context")

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None]) -> AnswerForm | None:
        columns = {part: _column(part, names, said.get(SAID.get(part, ""))) for part in NAMES}
        if not (columns["question"] and columns["context"] and columns["answers"]):
            return None
        form = cls(columns, "")
        if not form._fits(sample):
            return None
        of = f"'{columns['question']}' and '{columns['context']}'"
        return cls(columns, f"beside {of} there are answers in '{columns['answers']}' that stand in the contexts")

    def input(self, row: Row, number: int, name: str) -> dict[str, str] | None:
        given = {part: self._text(row, part, number, name) for part in ("question", "context")}
        return given if any(text.strip() for text in given.values()) else None

    def gold(self, row: Row, given: Any, number: int, name: str) -> dict[str, Any] | None:
        where = f"row {number} of '{name}'"
        stated = self._stated(row, where)
        if stated is None:
            return None
        answers = []
        for text, start in stated:
            at = place(given["context"], text, start)
            if at is None:
                off = f" at or near character {start:,}" if start is not None else ""
                raise DataError(
                    f"{where}: the answer '{_short(text)}' is not in the context{off}.",
                    hint="An answer is a part of its context, letter for letter: correct or remove the row.",
                )
            answers.append({"text": text, "start": at})
        return {"answers": answers, "id": self._id(row)}

    def key(self, given: Any) -> str:
        return "\0".join(" ".join(given[part].split()) for part in ("question", "context"))

    def _text(self, row: Row, part: str, number: int, name: str) -> str:
        column = self.columns.get(part) or part
        value = row.get(column)
        if isinstance(value, str):
            return value
        if _absent(value):
            return ""
        if isinstance(value, list | tuple | dict):
            raise DataError(
                f"row {number} of '{name}': column '{column}' holds a {type(value).__name__}, not a text.",
                hint="Choose other columns with --text COL --text-pair COL.",
            )
        return str(value)

    def _id(self, row: Row) -> str | None:
        value = row.get(self.columns.get("id") or "")
        return None if _absent(value) else str(value)

    def _stated(self, row: Row, where: str) -> list[tuple[str, int | None]] | None:
        """The row's answers that are not empty, each with its start where one is given; None where it has no column."""
        column = self.columns.get("answers") or ""
        if _true(row.get(self.columns.get("impossible") or "")):
            return []
        if column not in row:
            return None
        pairs = _pairs(row[column], row.get(self.columns.get("start") or ""))
        if pairs is None:
            raise DataError(
                f"{where}: column '{column}' holds no answers: {_short(str(row[column]))}",
                hint='Give a text, or {"text": ["…"], "answer_start": [0]}.',
            )
        found = []
        for text, start in pairs:
            if text.strip():
                at = _whole(start, where)
                blank = len(text) - len(text.lstrip())
                found.append((text.strip(), None if at is None else at + blank))
        return found

    def _fits(self, sample: Sequence[Row]) -> bool:
        """Whether the answers of most rows stand in their contexts, and not by chance as yes and no may."""
        there = []
        spelled, starts = set(), False
        for row in sample:
            try:
                given, stated = self.input(row, 0, ""), self._stated(row, "")
            except DataError:
                there.append(False)
                continue
            if given is not None and stated:
                there.append(all(_stands(given["context"], *answer) for answer in stated))
                spelled |= {text.casefold() for text, _ in stated}
                starts = starts or any(start is not None for _, start in stated)
        if not there:
            return self.columns["impossible"] is not None
        return sum(there) >= MOST * len(there) and (starts or not spelled <= VERDICTS)


def place(context: str, text: str, start: int | None) -> int | None:
    """Where an answer begins: where it is said to, or nearest to that; without a start where it first occurs."""
    if start is None:
        at = context.find(text)
        return None if at < 0 else at
    if context.startswith(text, start):
        return start
    low = max(0, start - NEARBY)
    found = []
    at = context.find(text, low, start + NEARBY + len(text))
    while at >= 0:
        found.append(at)
        at = context.find(text, at + 1, start + NEARBY + len(text))
    return min(found, key=lambda at: abs(at - start), default=None)


def _column(part: str, names: Sequence[str], said: str | None) -> str | None:
    if said is not None:
        if said not in names:
            listed = ", ".join(f"'{name[:60]}'" for name in names[:20])
            raise DataError(f"no column '{said}'; the columns are {listed}.", hint=near(said, names))
        return said
    by_plain = {re.sub(r"[\s-]+", "_", name.strip().casefold()): name for name in reversed(names)}
    return next((by_plain[name] for name in NAMES[part] if name in by_plain), None)


def _pairs(value: Any, start: Any) -> list[tuple[str, Any]] | None:
    """Answers as (text, start or None), from any of the shapes that files have them in; None where it is none."""
    if isinstance(value, str):
        parsed = _parsed(value)
        return [(value, start)] if parsed is None else _pairs(parsed, start)
    if _absent(value):
        return []
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [(str(value), start)]
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start", value.get("start"))
        if isinstance(texts, str):
            texts, starts = [texts], starts if isinstance(starts, list) else [starts]
        texts = _plain(texts)
        starts = [None] * len(texts) if starts is None and texts is not None else _plain(starts)
        if texts is None or starts is None or len(texts) != len(starts) or not all(isinstance(t, str) for t in texts):
            return None
        return list(zip(texts, starts, strict=True))
    listed = _plain(value)
    if listed is None:
        return None
    if len(listed) == 1 and isinstance(listed[0], str):
        return [(listed[0], start)]
    found = [_pairs(each, None) if isinstance(each, str | Mapping) else None for each in listed]
    return None if None in found else [pair for part in found if part for pair in part]


def _plain(value: Any) -> list[Any] | None:
    """A list, also where a frame holds an array or a tuple."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple) else None


def _parsed(text: str) -> Any:
    """The answers that a cell of a csv file spells out as JSON or as Python does; None where it is only a text."""
    if not text.lstrip().startswith(("{", "[")) or "text" not in text:
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, dict | list) else None
    return None


def _whole(start: Any, where: str) -> int | None:
    """A start as a number; one below zero says that there is none."""
    start = start.item() if hasattr(start, "item") else start
    if _absent(start) or start == "":
        return None
    try:
        number = float(start)
        if isinstance(start, bool) or not number.is_integer():
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"{where}: an answer's start is {_short(str(start))!r}, not a whole number.", hint="Leave it out."
        ) from None
    return int(number) if number >= 0 else None


def _stands(context: str, text: str, start: int | None) -> bool:
    """Whether an answer is where it is said to be; without a start, whether it is there as words."""
    if start is not None:
        return place(context, text, start) is not None
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context) is not None


def _true(value: Any) -> bool:
    return str(value).strip().casefold() in ("true", "1", "1.0", "yes")


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
