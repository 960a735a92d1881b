"""One of several labels for a text or a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.kinds import metrics, windows
from adaptree.kinds.kind import Example, Out, Prediction, as_tensor
from adaptree.kinds.windows import Windowed


@dataclass(frozen=True)
class Classify(Windowed):
    """Its targets and answers are positions in the labels."""

    name: ClassVar[str] = "classify"
    labels: tuple[str | int, ...]
    windows: bool = False
    """Whether a long text is read whole, in windows whose votes are pooled, and not cut."""

    def _votes(self, out: Out, examples: Sequence[Example]) -> Tensor:
        assert isinstance(out, Tensor)
        return windows.votes(out, examples) if self.windows else out

    @property
    def width(self) -> int:
        return len(self.labels)

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return metrics.score(self.name, targets, answers, labels=self._with_unknown(targets))

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return metrics.intervals(self.name, targets, answers, labels=self._with_unknown(targets))

    def _with_unknown(self, targets: Any) -> Sequence[int]:
        """The labels; where a file has some that the task cannot give, one more, which is never right."""
        return range(len(self.labels) + bool(len(targets) and np.max(targets) >= len(self.labels)))

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        out = self._votes(out, examples)
        return F.cross_entropy(out, as_tensor(targets, out).long(), weight=weights, reduction="none")

    def decode(self, out: Out, examples: Sequence[Example]) -> np.ndarray[Any, Any]:
        return self._votes(out, examples).argmax(-1).numpy()

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        return int((self.decode(exact, examples) != self.decode(out, examples)).sum())

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Prediction]:
        found = []
        for row in self._votes(out, examples).double().softmax(-1).tolist():
            scores = {str(label): score for label, score in zip(self.labels, row, strict=True)}
            best = max(range(len(row)), key=row.__getitem__)
            sure = min_score is None or row[best] >= min_score
            found.append(Prediction(label=self.labels[best] if sure else None, score=row[best], scores=scores))
        return found

    def extra(self) -> dict[str, Any]:
        return {"windows": True} if self.windows else {}

    def balance(self, targets: np.ndarray[Any, Any]) -> Tensor:
        """Weights that give every label the same say: rows / (labels · rows of the label)."""
        counts = np.bincount(targets, minlength=self.width).clip(min=1)
        return torch.tensor(len(targets) / (self.width * counts), dtype=torch.float32)
