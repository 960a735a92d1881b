"""The right one of several choices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adaptree.data.cells import as_list
from adaptree.data.columns import find_column, must_have
from adaptree.data.encode import Encoder
from adaptree.data.form import Form, Row
from adaptree.errors import DataError, UsageError
from adaptree.kinds import findings, metrics
from adaptree.kinds.findings import Evaluated, Section, Table
from adaptree.kinds.kind import Example, Kind, Out, by_example

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.tasks.record import Record

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

    needs: ClassVar[str] = "A question, its choices (a list, or option1, option2, …), and which is right."
    input_columns: ClassVar[tuple[str, ...]] = ("text", "choices", "choice0", "choice1")
    counted_from: int = 0
    """The number of the first choice, where labels are numbers."""

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        must_have(names, columns.values())
        numbered = [name for name in names if NUMBERED.fullmatch(name.strip())]
        whole = find_column(CHOICES, [name for name in names if _lists(name, sample)])
        if whole is None and len(numbered) < 2:
            return None
        others = [name for name in names if name not in ([whole] if whole else numbered)]
        text = columns.get("text") or find_column(QUESTIONS, others)
        label = columns.get("label") or find_column(LABELS, others)
        if text is None:
            return None
        parts: dict[str, str | None] = {"text": text, "label": label, "choices": whole}
        parts |= {} if whole else {f"choice{i}": name for i, name in enumerate(numbered)}
        shown = (
            f"'{whole}' holds lists" if whole else f"{', '.join(repr(name) for name in numbered)} stand side by side"
        )
        why = f"{shown}, and one of them is right"
        form = cls(parts, why, cls(parts, why)._first(sample))
        if label is not None and not any(_fits(form, row) for row in sample):
            return None
        return form

    def _first(self, sample: Sequence[Row]) -> int:
        """Return the number of the first choice, 0 or 1, by the sample's labels; if both fit, by names like option1."""
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
            values = _choice_texts(row.get(column))
        if not values or any(value is None for value in values):
            return None
        return [str(value) for value in values]

    def target(self, row: Row, given: Any, number: int, name: str) -> Any | None:
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
        """Return what the choices are called, where a row says so ('A', 'B', …)."""
        value = row.get(str(self.columns.get("choices")))
        if isinstance(value, Mapping) and isinstance(value.get("label"), list):
            return [str(label) for label in value["label"]]
        if isinstance(value, list) and value and all(isinstance(v, Mapping) and "label" in v for v in value):
            return [str(v["label"]) for v in value]
        return None

    def text(self, given: Any) -> str:
        return str(given["text"])


def _lists(name: str, sample: Sequence[Row]) -> bool:
    return any(len(_choice_texts(row.get(name)) or ()) > 1 for row in sample)


def _choice_texts(value: Any) -> list[Any] | None:
    """Return choices as a list; also {"text": […], "label": […]} and [{"text": …, "label": …}, …], as datasets have."""
    if isinstance(value, Mapping):
        value = value.get("text")
    found = as_list(value)
    return None if found is None else [item.get("text") if isinstance(item, Mapping) else item for item in found]


def _fits(form: ChooseForm, row: Row) -> bool:
    try:
        given = form.input(row, 0, "")
        return given is not None and form.target(row, given, 0, "") is not None
    except DataError:
        return False


def _number(value: Any) -> int | None:
    try:
        return int(float(value)) if float(value).is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _place(value: Any, choices: Sequence[str], names: Sequence[str] | None, counted_from: int) -> int | None:
    word = str(value).strip()
    if names is not None and word in names:
        return names.index(word)
    if word in choices:
        return list(choices).index(word)
    letter = word.upper().strip("().")
    if (number := _number(word)) is not None:
        place = number - counted_from
    else:
        place = LETTERS.index(letter) if len(letter) == 1 and letter in LETTERS else -1
    return place if 0 <= place < len(choices) else None


PLACE = "_"
"""Where a text has it once, the choice goes there."""


@dataclass(frozen=True)
class ChoicePrediction:
    """The choice, its number from 0, its probability, and those of all choices."""

    choice: str | None
    number: int
    score: float
    scores: list[float]

    def to_dict(self) -> dict[str, Any]:
        return {"choice": self.choice, "number": self.number, "score": self.score, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.choice, "score": self.score}


@dataclass(frozen=True)
class Choose(Kind):
    """Each choice is a row, beside the text or in its place; the head gives it a number, the highest is chosen."""

    name: ClassVar[str] = "choose"
    form: ClassVar[type[Form]] = ChooseForm
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    priority: ClassVar[int | None] = 30

    @property
    def width(self) -> int:
        return 1

    @property
    def single(self) -> bool:
        return False

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        texts: list[Any] = []
        for given in inputs:
            filled = given["text"].count(PLACE) == 1
            for choice in given["choices"]:
                texts.append(given["text"].replace(PLACE, choice) if filled else (given["text"], choice))
        rows: list[Any] = [None] * len(texts)
        for pair in (False, True):  # the tokenizer takes one or the other in a batch
            at = [i for i, text in enumerate(texts) if isinstance(text, tuple) == pair]
            for i, row in zip(at, encoder.encode([texts[i] for i in at], max_length) if at else [], strict=True):
                rows[i] = row
        ends = np.cumsum([len(given["choices"]) for given in inputs]).tolist()
        return [rows[end - len(given["choices"]) : end] for given, end in zip(inputs, ends, strict=True)]

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        import torch

        pairs = zip(by_example(out, examples), targets, strict=True)
        parts = [-part[:, 0].log_softmax(0)[target] for part, target in pairs]
        return torch.stack(parts) if parts else torch.zeros(0)

    def decode(self, out: Out, examples: Sequence[Example]) -> list[int]:
        return [int(part[:, 0].argmax()) for part in by_example(out, examples)]

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[ChoicePrediction]:
        found = []
        for part, given in zip(by_example(out, examples), inputs, strict=True):
            scores = part[:, 0].double().softmax(0).tolist()
            best = max(range(len(scores)), key=scores.__getitem__)
            sure = min_score is None or scores[best] >= min_score
            found.append(ChoicePrediction(given["choices"][best] if sure else None, best, scores[best], scores))
        return found

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        right = _right(targets, answers)
        return {"accuracy": metrics.classification(right, np.ones_like(right), 2)["accuracy"]}

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        right = _right(targets, answers)
        return {"accuracy": metrics.classification_intervals(right, np.ones_like(right), 2)["accuracy"]}

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        found = []
        for item in [inputs] if isinstance(inputs, Mapping) else inputs:
            if isinstance(item, tuple) and len(item) == 2:
                item = {"text": item[0], "choices": item[1]}
            if not isinstance(item, Mapping) or not isinstance(item.get("text"), str) or not _has_choices(item):
                raise UsageError(
                    f"the task '{record.name}' takes a text and its choices, not {item!r:.60}.",
                    hint='Give {"text": "…", "choices": ["…", "…"]}.',
                )
            found.append({"text": item["text"], "choices": list(item["choices"])})
        return found

    def line(self, line: str, record: Record) -> Any:
        text, *choices = line.split("\t")
        if len(choices) < 2:
            raise UsageError(f"the task '{record.name}' takes a text and two choices or more, separated by tabs.")
        return {"text": text, "choices": choices}

    @classmethod
    def describe(cls, record: Record) -> str:
        return "Chooses the right one of several answers to a text."

    @classmethod
    def usage(cls, record: Record) -> tuple[str, str]:
        return '("a text", ["a choice", "another"])', "--file questions.jsonl"

    @classmethod
    def show(cls, given: Any, target: Any) -> tuple[Sequence[str], str]:
        return [given["text"], *given["choices"]], given["choices"][target]

    def findings(self, on: Evaluated) -> dict[str, Any]:
        count = np.array([len(example) for example in on.examples], dtype=np.int64)
        gold, answers = np.asarray(on.targets, dtype=np.int64), np.asarray(on.answers, dtype=np.int64)
        logits = np.split(on.out[:, 0].double().numpy(), np.cumsum(count)[:-1])
        sure = np.array([1 / np.exp(part - part.max()).sum() for part in logits])  # the probability of the highest
        wrong = findings.worst(gold != answers, sure)

        def row(i: int) -> dict[str, Any]:
            given = on.inputs[i]
            return {
                "text": findings.cut(given["text"]),
                "gold": findings.cut(given["choices"][gold[i]]),
                "predicted": findings.cut(given["choices"][answers[i]]),
                "probability": sure[i],
            }

        return {
            "by_choices": [
                {"choices": n, "rows": int((count == n).sum()), "accuracy": (gold == answers)[count == n].mean()}
                for n in np.unique(count).tolist()
            ],
            "wrong": len(wrong),
            "mistakes": [row(i) for i in wrong[: findings.MOST_WRONG]],
        }

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        rows = [
            (row["choices"], row["rows"], row["accuracy"], 1 / row["choices"]) for row in found.get("by_choices") or []
        ]
        table = Table(("choices", "rows", "accuracy", "chance"), rows, ("accuracy", "chance"))
        columns = {name: name for name in ("gold", "predicted", "probability")}
        return [
            Section("By number of choices", [table]),
            findings.mistakes(found, record, "Those that it was surest of", columns, ("probability",)),
        ]


def _has_choices(item: Mapping[str, Any]) -> bool:
    found = item.get("choices")
    return isinstance(found, list | tuple) and len(found) > 1 and all(isinstance(choice, str) for choice in found)


def _right(targets: Any, answers: Any) -> np.ndarray[Any, Any]:
    """Return 1 where an answer is right, 0 where not: accuracy is how often that is 1, whatever the choices."""
    return np.array([int(a == b) for a, b in zip(targets, answers, strict=True)], dtype=np.int64)
