"""Any number of labels for a text or a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.kinds import bootstrap
from adaptree.kinds.kind import Example, Kind, Out

Array = np.ndarray[Any, Any]
THRESHOLDS = 99


@dataclass(frozen=True)
class Labelled:
    """The labels whose probability reaches the task's threshold, and every label's probability."""

    labels: list[str]
    scores: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"labels": self.labels, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        return {"prediction": "|".join(self.labels)}


@dataclass(frozen=True)
class Labels(Kind):
    """Each label is its own yes or no; one threshold for all is chosen on validation for the best micro F1."""

    name: ClassVar[str] = "classify"
    labels: tuple[str, ...]
    threshold: float = 0.5

    @property
    def width(self) -> int:
        return len(self.labels)

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        assert isinstance(out, Tensor)
        gold = torch.from_numpy(self._matrix(targets)).to(out)
        return F.binary_cross_entropy_with_logits(out, gold, reduction="none").mean(-1)

    def _matrix(self, targets: Sequence[Sequence[str]]) -> Array:
        place = {label: i for i, label in enumerate(self.labels)}
        found = np.zeros((len(targets), len(self.labels)), dtype=bool)
        for row, gold in zip(found, targets, strict=True):
            row[[place[label] for label in gold if label in place]] = True
        return found

    def decode(self, out: Out, examples: Sequence[Example]) -> Array:
        """(n, labels) of yes and no."""
        assert isinstance(out, Tensor)
        return (out.double().sigmoid() >= self.threshold).numpy()

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Any) -> Labels:
        assert isinstance(out, Tensor)
        gold, scores = self._matrix(targets), out.double().sigmoid().numpy()
        best, threshold = -1.0, 0.5
        for number in sorted(range(1, THRESHOLDS + 1), key=lambda k: abs(k - (THRESHOLDS + 1) // 2)):
            chosen = scores >= number / (THRESHOLDS + 1)
            f1 = 2 * float((chosen & gold).sum()) / max(float(chosen.sum() + gold.sum()), 1.0)
            if f1 > best:
                best, threshold = f1, number / (THRESHOLDS + 1)
        return replace(self, threshold=threshold)

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        return int((self.decode(exact, examples) != self.decode(out, examples)).any(-1).sum())

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Labelled]:
        assert isinstance(out, Tensor)
        least = self.threshold if min_score is None else min_score
        rows = [dict(zip(self.labels, row, strict=True)) for row in out.double().sigmoid().tolist()]
        return [Labelled([label for label, score in row.items() if score >= least], row) for row in rows]

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        sums = self._sums(targets, answers).sum(0, keepdims=True)
        return {name: float(values[0]) for name, values in _ratios(sums).items()}

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return bootstrap.intervals(self._sums(targets, answers), _ratios)

    def _sums(self, targets: Any, answers: Any) -> Array:
        """By row: for each label whether it was right, said and gold; and whether all of them were right."""
        gold, said = self._matrix(targets), np.asarray(answers, dtype=bool)
        unknown = np.array([[len(set(row) - set(self.labels))] for row in targets])
        whole = (gold == said).all(-1, keepdims=True) & (unknown == 0)
        return np.concatenate([gold & said, said, gold, unknown, whole, np.ones_like(whole)], axis=1).astype(np.float64)

    def extra(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "several": True}


def _ratios(sums: Array) -> dict[str, Array]:
    k = (sums.shape[1] - 3) // 3
    right, said, gold = sums[:, :k], sums[:, k : 2 * k], sums[:, 2 * k : 3 * k]
    unknown, whole, rows = sums[:, 3 * k], sums[:, 3 * k + 1], np.maximum(sums[:, 3 * k + 2], 1)
    hits, asked, there = right.sum(1), said.sum(1), gold.sum(1) + unknown
    by_label = _ratio(2 * right, said + gold)
    occurs = np.maximum((said + gold > 0).sum(1), 1)
    return {
        "f1": _ratio(2 * hits, asked + there),
        "macro_f1": by_label.sum(1) / occurs,
        "precision": _ratio(hits, asked),
        "recall": _ratio(hits, there),
        "accuracy": whole / rows,
    }


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
