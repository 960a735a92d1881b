"""One of several labels for a text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.kinds.kind import Kind, Out, Prediction, Unit, as_tensor


@dataclass(frozen=True)
class Classify(Kind):
    """Its golds and answers are positions in the labels."""

    name: ClassVar[str] = "classify"
    labels: tuple[str | int, ...]

    @property
    def width(self) -> int:
        return len(self.labels)

    def _labels(self) -> Sequence[int]:
        return range(len(self.labels))

    def loss(self, out: Out, units: Sequence[Unit], golds: Any, weights: Tensor | None = None) -> Tensor:
        assert isinstance(out, Tensor)
        return F.cross_entropy(out, as_tensor(golds, out).long(), weight=weights, reduction="none")

    def answers(self, out: Out, units: Sequence[Unit]) -> np.ndarray[Any, Any]:
        assert isinstance(out, Tensor)
        return out.argmax(-1).numpy()

    def changed(self, exact: Out, out: Out, units: Sequence[Unit]) -> int:
        return int((self.answers(exact, units) != self.answers(out, units)).sum())

    def predictions(
        self, out: Out, units: Sequence[Unit], inputs: Sequence[Any], min_score: float | None
    ) -> list[Prediction]:
        assert isinstance(out, Tensor)
        found = []
        for row in out.double().softmax(-1).tolist():
            scores = {str(label): score for label, score in zip(self.labels, row, strict=True)}
            best = max(range(len(row)), key=row.__getitem__)
            sure = min_score is None or row[best] >= min_score
            found.append(Prediction(label=self.labels[best] if sure else None, score=row[best], scores=scores))
        return found

    def balance(self, targets: np.ndarray[Any, Any]) -> Tensor:
        """Weights that give every label the same say: rows / (labels · rows of the label)."""
        counts = np.bincount(targets, minlength=self.width).clip(min=1)
        return torch.tensor(len(targets) / (self.width * counts), dtype=torch.float32)
