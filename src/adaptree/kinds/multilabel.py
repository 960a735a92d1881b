"""Any number of labels for a text or a pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from adaptree.data.cells import as_flag
from adaptree.data.columns import guess, must_have, split_names
from adaptree.data.form import Form, Row, TextForm
from adaptree.errors import DataError
from adaptree.kinds import bootstrap, findings
from adaptree.kinds.findings import Evaluated, Section
from adaptree.kinds.kind import Example, Kind, Out, texts_of
from adaptree.kinds.metrics import ratio

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
SEPARATORS = ("|", ";", ",")
SEVERAL = 0.1
"""The share of rows that must have several parts before a text is taken for several labels."""
LONGEST = 40
"""Characters of a part that may be a label."""
THRESHOLDS = 99


@dataclass(frozen=True)
class MultilabelForm(TextForm):
    """A list of labels in one column, or a text in which a mark separates them, or a column of 0 and 1 for each."""

    needs: ClassVar[str] = "A text, and a list of labels."
    many_label_columns: ClassVar[bool] = True

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        label = columns.get("label")
        if several := split_names(label, names):
            return cls._of_columns(names, sample, columns, several)
        try:
            found = guess(names, sample, text=columns.get("text"), pair=columns.get("pair"), label=label)
        except DataError:
            return None  # the form of one label a row raises it
        values = [row.get(str(found.label)) for row in sample]
        separator = _separator(values)
        if separator is None:
            return None
        shown = "holds lists" if not separator else f"has several labels in a row, separated by '{separator}'"
        return cls(
            {"text": found.text, "pair": found.pair, "labels": found.label, "separator": separator},
            f"'{found.label}' {shown}",
        )

    @staticmethod
    def column_names(columns: Mapping[str, Any]) -> list[str]:
        labels = columns["labels"].split(",") if columns["separator"] is None else [columns["labels"]]
        return [column for column in (columns["text"], columns.get("pair"), *labels) if column]

    @classmethod
    def _of_columns(
        cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None], several: Sequence[str]
    ) -> Form | None:
        must_have(names, several)
        if not all(as_flag(row.get(name)) is not None for row in sample for name in several):
            return None
        rest = [name for name in names if name not in several]
        found = guess(rest, sample, text=columns.get("text"), pair=columns.get("pair"), need_label=False)
        return cls(
            {"text": found.text, "pair": found.pair, "labels": ",".join(several), "separator": None},
            f"{', '.join(repr(name) for name in several)} say 0 or 1",
        )

    def target(self, row: Row, given: Any, number: int, name: str) -> list[str] | None:
        column, separator = str(self.columns["labels"]), self.columns["separator"]
        if separator is None:
            flags = {each: as_flag(row.get(each)) for each in column.split(",")}
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
        return sorted({label for part in parts if (label := str(part).strip())})

    def labels(self, target: Any) -> Iterable[str]:
        return list(target)


def _separator(values: Sequence[Any]) -> str | None:
    """Return what separates the labels of a row: '' for lists; None when rows have one label each."""
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


@dataclass(frozen=True)
class LabelsPrediction:
    """The labels whose probability reaches the task's threshold, and every label's probability."""

    labels: list[str]
    scores: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"labels": self.labels, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        return {"prediction": "|".join(self.labels)}


@dataclass(frozen=True)
class Multilabel(Kind):
    """Each label is its own yes or no; one threshold for all is chosen on validation for the best micro F1."""

    name: ClassVar[str] = "multilabel"
    family: ClassVar[str] = "classify"
    form: ClassVar[type[Form]] = MultilabelForm
    metrics: ClassVar[tuple[str, ...]] = ("f1", "macro_f1", "precision", "recall", "accuracy")
    priority: ClassVar[int | None] = 40
    chosen: ClassVar[tuple[str, ...]] = ("threshold",)
    target_name: ClassVar[str] = "label"
    labels: tuple[str, ...]
    threshold: float = 0.5

    @property
    def width(self) -> int:
        return len(self.labels)

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        import torch
        import torch.nn.functional as F

        wanted = torch.from_numpy(self._matrix(targets)).to(out)
        return F.binary_cross_entropy_with_logits(out, wanted, reduction="none").mean(-1)

    def _matrix(self, targets: Sequence[Sequence[str]]) -> Array:
        """Return (n, labels): whether each example has each label."""
        place = {label: i for i, label in enumerate(self.labels)}
        found = np.zeros((len(targets), len(self.labels)), dtype=bool)
        for row, target in zip(found, targets, strict=True):
            row[[place[label] for label in target if label in place]] = True
        return found

    def decode(self, out: Out, examples: Sequence[Example]) -> Array:
        """Return (n, labels): whether each label's probability reaches the threshold."""
        return np.asarray((out.double().sigmoid() >= self.threshold).numpy())

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Any) -> Self:
        gold, scores = self._matrix(targets), out.double().sigmoid().numpy()
        best, threshold = -1.0, 0.5
        for number in sorted(range(1, THRESHOLDS + 1), key=lambda k: abs(k - (THRESHOLDS + 1) // 2)):
            claimed = scores >= number / (THRESHOLDS + 1)
            f1 = 2 * float((claimed & gold).sum()) / max(float(claimed.sum() + gold.sum()), 1.0)
            if f1 > best:
                best, threshold = f1, number / (THRESHOLDS + 1)
        return replace(self, threshold=threshold)

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[LabelsPrediction]:
        least = self.threshold if min_score is None else min_score
        rows = [dict(zip(self.labels, row, strict=True)) for row in out.double().sigmoid().tolist()]
        return [LabelsPrediction([label for label, score in row.items() if score >= least], row) for row in rows]

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return bootstrap.score(self._sums(targets, answers), _ratios)

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return bootstrap.intervals(self._sums(targets, answers), _ratios)

    def _sums(self, targets: Any, answers: Any) -> Array:
        """Return by row: for each label whether it is right, predicted and gold; and whether all of them are right."""
        gold, predicted = self._matrix(targets), np.asarray(answers, dtype=bool)
        unknown = np.array([[len(set(row) - set(self.labels))] for row in targets])
        whole = (gold == predicted).all(-1, keepdims=True) & (unknown == 0)
        parts = [gold & predicted, predicted, gold, unknown, whole, np.ones_like(whole)]
        return np.concatenate(parts, axis=1).astype(np.float64)

    @classmethod
    def describe(cls, record: Record) -> str:
        return f"Puts {texts_of(record)} under any number of {len(record.labels)} labels."

    def findings(self, on: Evaluated) -> dict[str, Any]:
        labels, predicted = list(self.labels), np.asarray(on.answers, dtype=bool)
        gold = self._matrix(on.targets)
        shown = findings.most_frequent(gold.sum(0))
        losses = self.loss(on.out, on.examples, on.targets).double().numpy()
        unknown = np.array([any(name not in labels for name in names) for names in on.targets], dtype=bool)
        wrong = findings.worst((gold != predicted).any(1) | unknown, losses)
        counts = [(gold & predicted).sum(0)[shown], predicted.sum(0)[shown], gold.sum(0)[shown]]
        return {
            "labels": len(labels),
            "by_label": findings.by_label([labels[i] for i in shown], *counts),
            "wrong": len(wrong),
            "mistakes": [
                {
                    **findings.texts(on.inputs[i]),
                    "gold": findings.joined(on.targets[i]),
                    "predicted": findings.joined(labels[j] for j in np.flatnonzero(predicted[i])),
                    "loss": losses[i],
                }
                for i in wrong[: findings.MOST_WRONG]
            ],
        }

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        columns = {"gold": "gold", "predicted": "predicted", "loss": "loss"}
        return [
            Section("Label by label", findings.by_label_blocks(found)),
            findings.mistakes(found, record, "Those with the highest loss", columns, ("loss",)),
        ]


def _ratios(sums: Array) -> dict[str, Array]:
    k = (sums.shape[1] - 3) // 3
    right, predicted, gold = sums[:, :k], sums[:, k : 2 * k], sums[:, 2 * k : 3 * k]
    unknown, whole, rows = sums[:, 3 * k], sums[:, 3 * k + 1], np.maximum(sums[:, 3 * k + 2], 1)
    hits, claimed, there = right.sum(1), predicted.sum(1), gold.sum(1) + unknown
    by_label = ratio(2 * right, predicted + gold)
    occurs = np.maximum((predicted + gold > 0).sum(1), 1)
    return {
        "f1": ratio(2 * hits, claimed + there),
        "macro_f1": by_label.sum(1) / occurs,
        "precision": ratio(hits, claimed),
        "recall": ratio(hits, there),
        "accuracy": whole / rows,
    }
