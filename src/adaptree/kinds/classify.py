"""One of several labels for a text or a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from adaptree.core import acquisition
from adaptree.data.form import Form, LabelForm
from adaptree.data.target_column import TargetColumn
from adaptree.errors import UsageError
from adaptree.kinds import calibration, findings, metrics, windows
from adaptree.kinds.findings import Evaluated, Section
from adaptree.kinds.kind import Aim, Example, Out, Prediction, as_tensor, find_label, hidden_problem, log_odds, texts_of
from adaptree.kinds.windows import Windowed

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.data.encode import Encoder
    from adaptree.tasks.record import Record

TWO_LABELS = frozenset({"f1", "precision", "recall"})
"""Metrics of the second of two labels."""
MOST_NUMERIC_LABELS = 50
"""More distinct numbers than this are a quantity, not classes."""


@dataclass(frozen=True)
class Classify(Windowed):
    """Its targets and answers are positions in the labels."""

    name: ClassVar[str] = "classify"
    form: ClassVar[type[Form]] = LabelForm
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "matthews", "f1", "precision", "recall")
    priority: ClassVar[int | None] = 90
    baselines: ClassVar[bool] = True
    linear_outside: ClassVar[bool] = True
    weighs_classes: ClassVar[bool] = True
    contrasts: ClassVar[bool] = True
    chosen: ClassVar[tuple[str, ...]] = ("temperature",)
    target_name: ClassVar[str] = "label"
    labels: tuple[str | int, ...]
    windows: bool = False
    """Whether a long text is read whole, in windows whose votes are pooled, and not cut."""
    temperature: float = 1.0
    """What the votes are divided by before they become probabilities (`calibration`)."""
    hidden: str = ""
    """The activation of a hidden layer in the head, as tasks of other libraries have it; '' for none."""
    as_text: bool = False
    """Whether labels are read as text by a language model, and the likeliest is chosen (`AsText`)."""
    template: str = ""
    """For labels as text: what an input is put into."""

    @classmethod
    def from_data(cls, dataset: Dataset, rows: Any, encoder: Encoder, **options: Any) -> Self:
        options["template"] = options.get("template") or ""
        if options.get("as_text"):
            from adaptree.kinds.as_text import AsText

            return AsText.from_data(dataset, rows, encoder, **options)  # type: ignore[return-value]
        return super().from_data(dataset, rows, encoder, **options)

    @classmethod
    def from_record(cls, record: Record, encoder: Encoder) -> Self:
        if record.extra.get("as_text"):
            from adaptree.kinds.as_text import AsText

            return AsText.from_record(record, encoder)  # type: ignore[return-value]
        return super().from_record(record, encoder)

    def __post_init__(self) -> None:
        calibration.check(self.temperature)

    @staticmethod
    def takes(column: TargetColumn) -> str | None:
        if not column.all_numbers:
            return f"the labels are names, {column.count} different ones"
        if column.fractions or column.overflow or column.distinct > MOST_NUMERIC_LABELS:
            return None
        column.check_finite()
        return f"the labels are whole numbers, only {column.count} different ones"

    @property
    def width(self) -> int:
        return len(self.labels)

    def problem(self) -> str:
        return hidden_problem(self.hidden)

    def _votes(self, out: Out, examples: Sequence[Example]) -> Tensor:
        return windows.votes(out, examples) if self.windows else out

    def _shares(self, out: Out, examples: Sequence[Example]) -> Tensor:
        """Return the probability of each label, (n, labels)."""
        return (self._votes(out, examples).double() / self.temperature).softmax(-1)

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Any) -> Self:
        votes = self._votes(out, examples).double().numpy()
        return replace(self, temperature=calibration.of_classes(votes, targets))

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        import torch.nn.functional as F

        out = self._votes(out, examples)
        return F.cross_entropy(out, as_tensor(targets, out).long(), weight=weights, reduction="none")

    def class_weights(self, targets: Any) -> Tensor:
        """Return rows / (labels · rows of the label), for each label."""
        import torch

        counts = np.bincount(targets, minlength=self.width).clip(min=1)
        return torch.tensor(len(targets) / (self.width * counts), dtype=torch.float32)

    def alike(self, targets: Any) -> Tensor:
        """Return 1 for two examples of one label, else 0."""
        import torch

        labels = torch.from_numpy(np.asarray(targets))
        return (labels[:, None] == labels[None]).float()

    def bag_targets(self, targets: Any) -> tuple[list[Any], int]:
        return np.asarray(targets).tolist(), self.width

    def decode(self, out: Out, examples: Sequence[Example]) -> np.ndarray[Any, Any]:
        return self._votes(out, examples).argmax(-1).numpy()

    def doubts(self, out: Out, examples: Sequence[Example]) -> np.ndarray[Any, Any]:
        return acquisition.doubts(self._shares(out, examples).numpy())

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Prediction]:
        found = []
        for row in self._shares(out, examples).tolist():
            scores = {str(label): score for label, score in zip(self.labels, row, strict=True)}
            best = max(range(len(row)), key=row.__getitem__)
            sure = min_score is None or row[best] >= min_score
            found.append(Prediction(label=self.labels[best] if sure else None, score=row[best], scores=scores))
        return found

    def no_prediction(self) -> Prediction:
        return Prediction()

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        (row,) = self._shares(out, [example])
        at = int(row.argmax()) if target is None else find_label(target, self.labels)
        return [Aim(str(self.labels[at]), at, float(row[at]))]

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        return log_odds(self._votes(out, [example])[0] / self.temperature, key)

    @classmethod
    def check_metric(cls, name: str, labels: Sequence[Any]) -> str:
        if super().check_metric(name, labels) in TWO_LABELS and len(labels) != 2:
            raise UsageError(f"'{name}' is for two labels and here are {len(labels)}.", hint="--metric macro_f1")
        return name

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return metrics.classification(targets, answers, self._with_unknown(targets))

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return metrics.classification_intervals(targets, answers, self._with_unknown(targets))

    def _with_unknown(self, targets: Any) -> int:
        """Return the number of labels; one more, never right, where a file has labels that the task does not know."""
        return len(self.labels) + bool(len(targets) and np.max(targets) >= len(self.labels))

    def extra(self) -> dict[str, Any]:
        whole = ({"windows": True} if self.windows else {}) | ({"hidden": self.hidden} if self.hidden else {})
        return whole | ({"temperature": self.temperature} if self.temperature != 1.0 else {})

    @classmethod
    def scale(cls, record: Record) -> tuple[list[float], list[float]] | None:
        return calibration.scale(record, len(record.labels))

    @classmethod
    def describe(cls, record: Record) -> str:
        if record.extra.get("as_text"):
            from adaptree.kinds.as_text import describe

            return describe(record)
        return f"Puts {texts_of(record)} under one of {len(record.labels)} labels."

    @classmethod
    def outputs(cls, record: Record) -> Any:
        template = record.extra.get("template") if record.extra.get("as_text") else None
        return record.labels if template is None else (tuple(record.labels), template)

    @classmethod
    def score_note(cls, record: Record) -> str:
        return f"f1, precision and recall are those of {record.labels[1]}." if len(record.labels) == 2 else ""

    def findings(self, on: Evaluated) -> dict[str, Any]:
        labels = [findings.name(label) for label in self.labels]
        gold, answers = np.asarray(on.targets, dtype=np.int64), np.asarray(on.answers, dtype=np.int64)
        sure, before = self._sure(on), None if self.temperature == 1.0 else replace(self, temperature=1.0)._sure(on)
        matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
        np.add.at(matrix, (gold, answers), 1)
        shown = findings.most_frequent(matrix.sum(1))
        wrong = findings.worst(gold != answers, sure)

        def row(i: int) -> dict[str, Any]:
            named = {"gold": labels[gold[i]], "predicted": labels[answers[i]]}
            return {**findings.texts(on.inputs[i]), **named, "probability": sure[i]}

        return {
            "labels": len(labels),
            "confusion": {"labels": [labels[i] for i in shown], "counts": matrix[np.ix_(shown, shown)].tolist()},
            "by_label": findings.by_label(
                [labels[i] for i in shown], matrix.diagonal()[shown], matrix.sum(0)[shown], matrix.sum(1)[shown]
            ),
            "calibration": findings.calibration(sure, gold == answers, before),
            "wrong": len(wrong),
            "mistakes": [row(i) for i in wrong[: findings.MOST_WRONG]],
            "right": [row(i) for i in _first_right(gold, answers)],
        }

    def _sure(self, on: Evaluated) -> np.ndarray[Any, Any]:
        """Return the probability of each answer."""
        shares = self._shares(on.out, on.examples).numpy()
        return np.asarray(shares[np.arange(len(shares)), np.asarray(on.answers, dtype=np.int64)])

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        columns = {"predicted": "predicted", "probability": "probability"}
        right = found.get("right") or []
        return [
            Section("Label by label", [*findings.by_label_blocks(found), *findings.confusion_blocks(found)]),
            Section("How sure it is", findings.calibration_blocks(found, record)),
            findings.mistakes(
                found, record, "Those that it was surest of", {"gold": "gold", **columns}, ("probability",)
            ),
            Section("Where it is right", [findings.examples_table(right, columns, ("probability",))]),
        ]


def _first_right(gold: np.ndarray[Any, Any], answers: np.ndarray[Any, Any]) -> list[int]:
    """Return the first right answers, of as many labels as possible."""
    right = np.flatnonzero(gold == answers)
    _, first = np.unique(gold[right], return_index=True)
    return [int(i) for i in np.sort(right[first])[: findings.MOST_RIGHT]]
