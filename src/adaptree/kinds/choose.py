"""The right one of several choices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from adaptree.data.cells import as_list, as_text, is_absent, is_empty
from adaptree.data.columns import ASIDE, find_column, must_have, plain_name
from adaptree.data.encode import Encoder, Layout
from adaptree.data.form import Form, Row
from adaptree.errors import DataError, UsageError
from adaptree.kinds import calibration, findings, metrics
from adaptree.kinds.findings import Evaluated, Section, Table
from adaptree.kinds.kind import Aim, Example, Kind, Out, by_example, log_odds

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.tasks.record import Record

QUESTIONS = (
    "question", "q", "question_text", "text", "sentence", "context", "prompt", "premise", "stem", "query",
    "startphrase", "ctx",
)  # fmt: skip
CONTEXTS = (
    "context", "passage", "article", "paragraph", "story", "document", "background", "support", "premise", "text",
)  # fmt: skip
"""What a question may be about."""
CHOICES = ("choices", "options", "endings", "answers", "candidates")
LABELS = (
    "label", "answer", "answerkey", "answer_key", "correct", "gold", "target", "correct_answer", "correct_option",
    "correct_choice", "right_answer", "solution", "key", "ans", "cop",
)  # fmt: skip
NUMBERED = re.compile(r"((?:option|choice|ending|answer|candidate|alternative|sol|opt|op)_?)([0-9]{1,2}|[a-h])")
MARKED = re.compile(r"()([a-h]|[1-9])")
"""Columns that are named by a letter or a number alone; only where the labels fit them are they choices."""
LETTERS = "ABCDEFGH"
MOST = 100
FIT = 0.8
"""The share of a sample's labels that must name a choice, where the columns' names do not say that they are choices."""


@dataclass(frozen=True)
class ChooseForm(Form):
    """A text, its choices, and which is right: as a number, a letter, the choice's column or the choice itself.

    Choices are a list in one column, or columns such as option1, option2 or A, B, C. A text with a single '_' has the
    choice put in its place; else the choice stands beside the text. There may be a context that the text is about.
    """

    needs: ClassVar[str] = "A question, its choices (a list, or columns option1, option2, …), and which is right."
    input_columns: ClassVar[tuple[str, ...]] = ("text", "context", "choices", "choice0", "choice1")
    counted_from: int = 0
    """The number of the first choice, where labels are numbers."""

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        must_have(names, columns.values())
        if whole := find_column(CHOICES, [name for name in names if _lists(name, sample)]):
            return cls._of({"choices": whole}, f"'{whole}' holds lists", names, sample, columns)
        for pattern in (NUMBERED, MARKED):
            if choices := _side_by_side(pattern, names):
                parts = {"choices": None} | {f"choice{i}": name for i, name in enumerate(choices)}
                shown = f"{', '.join(map(repr, choices))} stand side by side"
                if form := cls._of(parts, shown, names, sample, columns):
                    return form if pattern is NUMBERED or form._surely(sample) else None
        return None

    @classmethod
    def _of(
        cls,
        choices: Mapping[str, str | None],
        shown: str,
        names: Sequence[str],
        sample: Sequence[Row],
        columns: Mapping[str, str | None],
    ) -> ChooseForm | None:
        """Return the form of a file with these columns of choices, if it has a question and labels that fit.

        A column that the user names as the text, its pair or the label is no choice.
        """
        if any(name and name in choices.values() for name in columns.values()):
            return None
        free = [name for name in names if name not in choices.values() and name not in columns.values()]
        naming = [name for name in free if cls({"label": name, **choices}, "")._names_choices(sample)]
        label = columns.get("label") or find_column(LABELS, free) or (naming[0] if len(naming) == 1 else None)
        rest = [name for name in free if name != label and not ASIDE.fullmatch(plain_name(name))]
        text = columns.get("text") or find_column(QUESTIONS, rest)
        if text is None and label in naming and len(rest) == 1:
            text = rest[0]
        if text is None or label is None:
            return None
        parts: dict[str, str | None] = {"text": text, "label": label, **choices}
        if context := columns.get("pair") or find_column(CONTEXTS, [name for name in rest if name != text]):
            parts["context"] = context
        why = f"{shown}, and one of them is right"
        form = cls(parts, why, cls(parts, why)._first(sample))
        return form if any(_fits(form, row) for row in sample) else None

    def _names_choices(self, sample: Sequence[Row]) -> bool:
        """Return whether nearly all labels are letters, texts or columns of choices: numbers could be classes."""
        named = []
        for row in sample:
            value, choices = row.get(str(self.columns["label"])), self._choices(row)
            if choices and not _is_blank(value):
                named.append(_number(value) is None and _place(value, choices, self._names(row), 0) is not None)
        return bool(named) and sum(named) >= FIT * len(named)

    def _surely(self, sample: Sequence[Row]) -> bool:
        """Return whether nearly all labels name a choice, and labels or choices are not all numbers."""
        named = [row for row in sample if not _is_blank(row.get(str(self.columns["label"])))]
        words = [row.get(str(self.columns[part])) for row in named for part in ("label", "choice0", "choice1")]
        return sum(_fits(self, row) for row in named) >= FIT * len(named) and any(_number(w) is None for w in words)

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
        column = self.columns.get("context")
        about = {"context": as_text(row.get(column), number, column, name)} if column else {}
        if is_empty(text + about.get("context", "")):
            return None
        found = self._choices(row)
        if found is None:
            return None
        if not 2 <= len(found) <= MOST:
            raise DataError(
                f"row {number} of '{name}' has {len(found)} choices; 2 to {MOST} are needed.", hint="Correct the row."
            )
        return {"text": text, **about, "choices": found}

    def _choices(self, row: Row) -> list[str] | None:
        column = self.columns.get("choices")
        if column is not None:
            values = _choice_texts(row.get(column))
            return None if not values or None in values else [str(value) for value in values]
        values = [row.get(name) for name in self._choice_columns()]
        while values and _is_blank(values[-1]):  # a question with fewer choices than others have
            values.pop()
        return None if not values or any(map(_is_blank, values)) else [str(value) for value in values]

    def _choice_columns(self) -> list[str]:
        return [name for key, name in self.columns.items() if key.startswith("choice") and key != "choices" and name]

    def target(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        if self.columns["label"] is None:
            return None
        value = row.get(str(self.columns["label"]))
        if _is_blank(value):
            return None
        place = _place(value, given["choices"], self._names(row), self.counted_from)
        if place is None:
            raise DataError(
                f"row {number} of '{name}': '{str(value)[:60]}' names none of its {len(given['choices'])} choices.",
                hint="Give the choice's number, its letter, or its text.",
            )
        return place

    def _names(self, row: Row) -> list[str] | None:
        """Return what the choices are called, where a row or the names of their columns say so ('A', 'B', …)."""
        if self.columns.get("choices") is None:
            names = [plain_name(column) for column in self._choice_columns()]
            return None if names[0].isdigit() else names  # numbers may be counted from 0
        value = row.get(str(self.columns.get("choices")))
        if isinstance(value, Mapping) and isinstance(value.get("label"), list):
            return [str(label) for label in value["label"]]
        if isinstance(value, list) and value and all(isinstance(v, Mapping) and "label" in v for v in value):
            return [str(v["label"]) for v in value]
        return None

    def text(self, given: Any) -> str | tuple[str, str]:
        return (given["context"], given["text"]) if "context" in given else str(given["text"])

    def measured(self, given: Any) -> str | tuple[str, str]:
        return _row(given, max(given["choices"], key=len))

    def blank_columns(self, given: Any) -> list[str]:
        parts = [part for part in ("text", "context") if is_empty(given.get(part, "-"))]
        return [str(self.columns[part]) for part in parts]


def _side_by_side(pattern: re.Pattern[str], names: Sequence[str]) -> list[str]:
    """Return the columns with one name but for a number or a letter, in that order; [] unless there are several."""
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if match := pattern.fullmatch(plain_name(name)):
            groups.setdefault(match[1].rstrip("_") + str(match[2].isdigit()), {})[match[2]] = name
    found = max(groups.values(), key=len, default={})
    marks = sorted(found, key=lambda mark: (len(mark), mark))
    from_first = "".join(marks) in ("abcdefgh"[: len(marks)], "123456789"[: len(marks)])
    return [found[mark] for mark in marks] if len(marks) > 1 and (pattern is NUMBERED or from_first) else []


def _is_blank(value: Any) -> bool:
    return is_absent(value) or not str(value).strip()


def _row(given: Mapping[str, Any], choice: str) -> str | tuple[str, str]:
    """Return what is encoded for a choice: the text with it, or beside it; or the context, and both beside that."""
    text, filled = given["text"], given["text"].count(PLACE) == 1
    if "context" in given:  # a long context is cut, and not the question
        return given["context"], text.replace(PLACE, choice) if filled else f"{text} {choice}".strip()
    return text.replace(PLACE, choice) if filled else (text, choice)


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
    for name in (word, plain_name(word)):
        if names is not None and name in names:
            return names.index(name)
    if word in (texts := [choice.strip() for choice in choices]):
        return texts.index(word)
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
    """The choice, its number from 0, its probability, and those of all choices; all None if there is no text."""

    choice: str | None
    number: int | None
    score: float | None
    scores: list[float] | None

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
    priority: ClassVar[int | None] = 15
    chosen: ClassVar[tuple[str, ...]] = ("temperature",)
    temperature: float = 1.0
    """What the numbers are divided by before they become probabilities (`calibration`)."""

    def __post_init__(self) -> None:
        calibration.check(self.temperature)

    @property
    def width(self) -> int:
        return 1

    @property
    def single(self) -> bool:
        return False

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        texts = [text for given in inputs for text in _filled(given)]
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

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Any) -> Self:
        most = max((len(example) for example in examples), default=0)
        logits = np.full((len(examples), most), -np.inf)
        for row, part in zip(logits, by_example(out, examples), strict=True):
            row[: len(part)] = part[:, 0].double().numpy()
        return replace(self, temperature=calibration.of_classes(logits, targets))

    def extra(self) -> dict[str, Any]:
        return {"temperature": self.temperature} if self.temperature != 1.0 else {}

    @classmethod
    def scale(cls, record: Record) -> tuple[list[float], list[float]] | None:
        return calibration.scale(record, 1)

    def decode(self, out: Out, examples: Sequence[Example]) -> list[int]:
        return [int(part[:, 0].argmax()) for part in by_example(out, examples)]

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[ChoicePrediction]:
        found = []
        for part, given in zip(by_example(out, examples), inputs, strict=True):
            scores = (part[:, 0].double() / self.temperature).softmax(0).tolist()
            best = max(range(len(scores)), key=scores.__getitem__)
            sure = min_score is None or scores[best] >= min_score
            found.append(ChoicePrediction(given["choices"][best] if sure else None, best, scores[best], scores))
        return found

    def no_prediction(self) -> ChoicePrediction:
        return ChoicePrediction(None, None, None, None)

    def is_blank(self, given: Any) -> bool:
        return is_empty(given["text"] + given.get("context", ""))

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        """Return the choice with the highest number, or the one that is named by its text or its number from 0."""
        shares = (out[:, 0].double() / self.temperature).softmax(0).tolist()
        at = max(range(len(shares)), key=shares.__getitem__)
        if target is not None:
            named = _place(target, given["choices"], None, 0)
            if named is None:
                raise UsageError(
                    f"'{target}' is none of the {len(shares)} choices.", hint="Name one by its text, or number from 0."
                )
            at = named
        return [Aim(given["choices"][at], at, shares[at])]

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        return log_odds(out[:, 0] / self.temperature, key)

    def layout(self, encoder: Encoder, given: Any, example: Example, max_length: int) -> Layout:
        """Return the text and the choices as texts 0, 1, 2, …; with a context, that and each choice's question."""
        rows = []
        filled = _filled(given)
        for number, text in enumerate(filled, 1):
            places = encoder.places(text, max_length)
            if isinstance(text, tuple):
                places[places[:, 0] == 1, 0] = number
            else:
                at, length = given["text"].index(PLACE), len(given["choices"][number - 1])
                inside = (places[:, 0] == 0) & (places[:, 1] >= at) & (places[:, 1] < at + length)
                behind = (places[:, 0] == 0) & (places[:, 1] >= at + length)
                places[inside] += [number, -at, -at]
                places[behind] -= [0, length - len(PLACE), length - len(PLACE)]
            rows.append(places)
        if "context" in given:
            return Layout([given["context"], *(text for _, text in filled)], rows)
        return Layout([given["text"], *given["choices"]], rows)

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
            if not isinstance(item, Mapping) or not _has_texts(item) or not _has_choices(item):
                raise UsageError(
                    f"the task '{record.name}' takes a text and its choices, not {item!r:.60}.",
                    hint='Give {"text": "…", "choices": ["…", "…"]}, with "context": "…" if there is one.',
                )
            about = {"context": item["context"]} if "context" in item else {}
            found.append({"text": item["text"], **about, "choices": list(item["choices"])})
        return found

    def line(self, line: str, record: Record) -> Any:
        text, *choices = line.split("\t")
        about = {"context": choices.pop(0)} if record.columns.get("context") and choices else {}
        if len(choices) < 2:
            takes = "a text, its context" if record.columns.get("context") else "a text"
            raise UsageError(f"the task '{record.name}' takes {takes} and two choices or more, separated by tabs.")
        return {"text": text, **about, "choices": choices}

    @classmethod
    def describe(cls, record: Record) -> str:
        return "Chooses the right one of several answers to a text."

    @classmethod
    def usage(cls, record: Record) -> tuple[str, str]:
        return '("a text", ["a choice", "another"])', "--file questions.jsonl"

    @classmethod
    def show(cls, given: Any, target: Any) -> tuple[Sequence[str], str]:
        about = [given["context"]] if "context" in given else []
        return [*about, given["text"], *given["choices"]], given["choices"][target]

    def findings(self, on: Evaluated) -> dict[str, Any]:
        count = np.array([len(example) for example in on.examples], dtype=np.int64)
        gold, answers = np.asarray(on.targets, dtype=np.int64), np.asarray(on.answers, dtype=np.int64)
        logits = np.split(on.out[:, 0].double().numpy(), np.cumsum(count)[:-1])
        sure = _sure(logits, self.temperature)
        wrong = findings.worst(gold != answers, sure)

        def row(i: int) -> dict[str, Any]:
            given = on.inputs[i]
            return {
                "text": findings.cut(given["text"]),
                "gold": findings.cut(given["choices"][gold[i]]),
                "predicted": findings.cut(given["choices"][answers[i]]),
                "probability": sure[i],
            }

        found: dict[str, Any] = {
            "by_choices": [
                {"choices": n, "rows": int((count == n).sum()), "accuracy": (gold == answers)[count == n].mean()}
                for n in np.unique(count).tolist()
            ],
            "wrong": len(wrong),
            "mistakes": [row(i) for i in wrong[: findings.MOST_WRONG]],
        }
        if self.temperature != 1.0:
            found["calibration"] = findings.calibration(sure, gold == answers, _sure(logits, 1.0))
        return found

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        rows = [
            (row["choices"], row["rows"], row["accuracy"], 1 / row["choices"]) for row in found.get("by_choices") or []
        ]
        table = Table(("choices", "rows", "accuracy", "chance"), rows, ("accuracy", "chance"))
        columns = {name: name for name in ("gold", "predicted", "probability")}
        return [
            Section("By number of choices", [table]),
            Section("How sure it is", findings.calibration_blocks(found, record)),
            findings.mistakes(found, record, "Those that it was surest of", columns, ("probability",)),
        ]


def _has_texts(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("text"), str) and isinstance(item.get("context", ""), str)


def _filled(given: Any) -> list[Any]:
    """Return what the row of each choice is made of."""
    return [_row(given, choice) for choice in given["choices"]]


def _sure(logits: Sequence[np.ndarray[Any, Any]], temperature: float) -> np.ndarray[Any, Any]:
    """Return the probability of the highest choice of each question."""
    return np.array([1 / np.exp((part - part.max()) / temperature).sum() for part in logits])


def _has_choices(item: Mapping[str, Any]) -> bool:
    found = item.get("choices")
    return isinstance(found, list | tuple) and len(found) > 1 and all(isinstance(choice, str) for choice in found)


def _right(targets: Any, answers: Any) -> np.ndarray[Any, Any]:
    """Return 1 where an answer is right, 0 where not: accuracy is how often that is 1, whatever the choices."""
    return np.array([int(a == b) for a, b in zip(targets, answers, strict=True)], dtype=np.int64)
