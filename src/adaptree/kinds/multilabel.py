"""Any number of labels for a text or a pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from adaptree.core import acquisition
from adaptree.data.cells import as_flag
from adaptree.data.columns import guess, must_have, split_names
from adaptree.data.form import Form, Row, TextForm
from adaptree.errors import DataError, TaskCorrupt
from adaptree.kinds import bootstrap, calibration, findings
from adaptree.kinds.findings import Evaluated, Section
from adaptree.kinds.kind import Aim, Example, Kind, Out, find_label, hidden_problem, texts_of
from adaptree.kinds.metrics import macro_f1, ratio

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
LEAST_POSITIVE = 5
"""Positive validation rows from which a label has a threshold of its own: fewer would be fitted to noise."""
PRIOR = 20
"""Positive rows of a label with which its own threshold and the common one count alike."""


@dataclass(frozen=True)
class MultilabelForm(TextForm):
    """A list of labels in one column, or a text in which a mark separates them, or a column of 0 and 1 for each."""

    needs: ClassVar[str] = "A text, and a list of labels."
    many_label_columns: ClassVar[bool] = True
    merges_labels: ClassVar[bool] = True

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

    def renamed(self, target: Any, names: Mapping[str, str]) -> list[str]:
        return sorted({names.get(label, label) for label in target})


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
    """The labels whose probability reaches their threshold, and every label's probability.

    Of an empty text, both are None.
    """

    labels: list[str] | None
    scores: dict[str, float] | None

    def to_dict(self) -> dict[str, Any]:
        return {"labels": self.labels, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        return {"prediction": None if self.labels is None else "|".join(self.labels)}


@dataclass(frozen=True)
class Multilabel(Kind):
    """Each label is its own yes or no; the thresholds are chosen on validation, for the best micro F1.

    Labels with few positive rows, and all labels where there are few rows, share one threshold.
    """

    name: ClassVar[str] = "multilabel"
    family: ClassVar[str] = "classify"
    form: ClassVar[type[Form]] = MultilabelForm
    metrics: ClassVar[tuple[str, ...]] = ("f1", "macro_f1", "precision", "recall", "accuracy")
    priority: ClassVar[int | None] = 40
    contrasts: ClassVar[bool] = True
    chosen: ClassVar[tuple[str, ...]] = ("threshold", "thresholds", "temperature")
    target_name: ClassVar[str] = "label"
    labels: tuple[str, ...]
    threshold: float = 0.5
    """The probability from which a label counts as predicted."""
    thresholds: tuple[float, ...] = ()
    """The same for each label; () where `threshold` is for all."""
    temperature: float = 1.0
    """What the outputs are divided by before they become probabilities (`calibration`)."""
    hidden: str = ""
    """The activation of a hidden layer in the head, as tasks of other libraries have it; '' for none."""

    def __post_init__(self) -> None:
        calibration.check(self.temperature)
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise TaskCorrupt(
                f"the task has {len(self.labels)} labels and {len(self.thresholds)} thresholds.", hint="Train again."
            )

    @property
    def width(self) -> int:
        return len(self.labels)

    def problem(self) -> str:
        if not 0 <= self.threshold <= 1:
            return f"a threshold of {self.threshold:g} is no probability"
        return hidden_problem(self.hidden)

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

    def alike(self, targets: Any) -> Tensor:
        """Return the share of labels that two examples have in common, of all that either has (Jaccard)."""
        import torch

        has = torch.from_numpy(self._matrix(targets)).float()
        common = has @ has.t()
        counts = has.sum(1)
        return common / (counts[:, None] + counts[None] - common).clamp_min(1)

    @property
    def _least(self) -> tuple[float, ...]:
        """The probability from which each label counts as predicted."""
        return self.thresholds or (self.threshold,) * len(self.labels)

    def _shares(self, out: Out) -> Array:
        """Return the probability of each label, (n, labels)."""
        return np.asarray((out.double() / self.temperature).sigmoid().numpy())

    def decode(self, out: Out, examples: Sequence[Example]) -> Array:
        """Return (n, labels): whether each label's probability reaches its threshold."""
        return self._shares(out) >= np.array(self._least)

    def extra(self) -> dict[str, Any]:
        own = {"thresholds": list(self.thresholds)} if self.thresholds else {}
        heat = {"temperature": self.temperature} if self.temperature != 1.0 else {}
        inner = {"hidden": self.hidden} if self.hidden else {}
        return {"threshold": self.threshold, **own, **heat, **inner}

    @classmethod
    def scale(cls, record: Record) -> tuple[list[float], list[float]] | None:
        return calibration.scale(record, len(record.labels))

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Any) -> Self:
        gold, scores = self._matrix(targets), out.double().sigmoid().numpy()
        temperature = calibration.of_flags(out.double().numpy(), gold)
        common = best_threshold(scores, gold)
        own = thresholds(scores, gold, common) if len(gold) >= calibration.LEAST_ROWS else (common,) * self.width
        apart = tuple(calibration.moved(each, temperature) for each in own)
        return replace(
            self,
            threshold=calibration.moved(common, temperature),
            thresholds=apart if set(own) != {common} else (),
            temperature=temperature,
        )

    def doubts(self, out: Out, examples: Sequence[Example]) -> Array:
        """Return the mean entropy of the labels, each of which is there or not."""
        p = self._shares(out)
        return np.asarray(acquisition.entropies(np.stack([p, 1 - p], -1).reshape(-1, 2)).reshape(p.shape).mean(1))

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[LabelsPrediction]:
        least = dict(zip(self.labels, self._least, strict=True))
        if min_score is not None:
            least = dict.fromkeys(self.labels, min_score)
        rows = [dict(zip(self.labels, row, strict=True)) for row in self._shares(out).tolist()]
        return [LabelsPrediction([label for label, score in row.items() if score >= least[label]], row) for row in rows]

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        """Return every label that is predicted, or the most probable one where none is; or the one that is named."""
        shares = self._shares(out)[0]
        some = np.flatnonzero(self.decode(out, [example])[0]).tolist() or [int(shares.argmax())]
        if target is not None:
            some = [find_label(target, self.labels)]
        return [Aim(self.labels[at], at, float(shares[at])) for at in some]

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        found: Tensor = out[0, key] / self.temperature
        return found

    def no_prediction(self) -> LabelsPrediction:
        return LabelsPrediction(None, None)

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
        found: dict[str, Any] = {
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
        if self.temperature != 1.0:
            sure, before = (each._shares(on.out).ravel() for each in (self, replace(self, temperature=1.0)))
            found["calibration"] = findings.calibration(sure, gold.ravel(), before)
        return found

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        columns = {"gold": "gold", "predicted": "predicted", "loss": "loss"}
        return [
            Section("Label by label", findings.by_label_blocks(found)),
            Section("How sure it is", findings.calibration_blocks(found, record)),
            findings.mistakes(found, record, "Those with the highest loss", columns, ("loss",)),
        ]


def best_threshold(scores: Array, gold: Array) -> float:
    """Return the hundredth with the best micro F1 for all labels; of equal ones that nearest to a half."""
    best, threshold = -1.0, 0.5
    for number in sorted(range(1, THRESHOLDS + 1), key=lambda k: abs(k - (THRESHOLDS + 1) // 2)):
        claimed = scores >= number / (THRESHOLDS + 1)
        f1 = 2 * float((claimed & gold).sum()) / max(float(claimed.sum() + gold.sum()), 1.0)
        if f1 > best:
            best, threshold = f1, number / (THRESHOLDS + 1)
    return threshold


def thresholds(scores: Array, gold: Array, common: float) -> tuple[float, ...]:
    """Return the thresholds of the labels with which together the micro F1 is best, drawn towards the common one.

    The best F = 2 TP / (predicted + gold) is where the sum over labels of 2 TP - F · predicted is highest (Dinkelbach
    1967), and for a given F each label can be looked at alone. What a label has of its own counts as much as it has
    positive rows, against PRIOR; with fewer than LEAST_POSITIVE it has nothing.
    """
    positive, labels = gold.sum(0), np.arange(gold.shape[1])
    numbers = sorted(range(1, THRESHOLDS + 1), key=lambda k: abs(k / (THRESHOLDS + 1) - common))
    grid = np.array(numbers) / (THRESHOLDS + 1)
    hits, claims = (np.zeros((len(grid), len(labels))) for _ in range(2))
    for i, each in enumerate(grid):
        claimed = scores >= each
        hits[i], claims[i] = (claimed & gold).sum(0), claimed.sum(0)
    at, best = np.zeros(len(labels), dtype=np.int64), -1.0
    while (f1 := 2 * hits[at, labels].sum() / max(claims[at, labels].sum() + positive.sum(), 1.0)) > best:
        best = f1
        at = np.where(positive >= LEAST_POSITIVE, (2 * hits - f1 * claims).argmax(0), 0)
    weight = positive / (positive + PRIOR)
    drawn = 1 / (1 + np.exp(-weight * _logit(grid[at]) - (1 - weight) * _logit(common)))
    return tuple(np.where(at == 0, common, drawn).tolist())


def _logit(p: Any) -> Any:
    return np.log(p / (1 - p))


def _ratios(sums: Array) -> dict[str, Array]:
    """Return the metrics of totals (R, …), the first of which are those of the data itself."""
    k = (sums.shape[1] - 3) // 3
    right, predicted, gold = sums[:, :k], sums[:, k : 2 * k], sums[:, 2 * k : 3 * k]
    unknown, whole, rows = sums[:, 3 * k], sums[:, 3 * k + 1], np.maximum(sums[:, 3 * k + 2], 1)
    hits, claimed, there = right.sum(1), predicted.sum(1), gold.sum(1) + unknown
    return {
        "f1": ratio(2 * hits, claimed + there),
        "macro_f1": macro_f1(right, predicted, gold),
        "precision": ratio(hits, claimed),
        "recall": ratio(hits, there),
        "accuracy": whole / rows,
    }
