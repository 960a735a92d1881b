"""A number for a text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from adaptree.errors import UsageError
from adaptree.kinds import windows
from adaptree.kinds.kind import Example, Out, Prediction, as_tensor
from adaptree.kinds.windows import Windowed


@dataclass(frozen=True)
class Regress(Windowed):
    """Trained on standardised targets: an output of 1 is one standard deviation above the mean."""

    name: ClassVar[str] = "regress"
    mean: float
    std: float
    windows: bool = False
    """Whether a long text is read whole, in windows of which the mean counts, and not cut."""

    def _means(self, out: Out, examples: Sequence[Example]) -> Tensor:
        assert isinstance(out, Tensor)
        return windows.means(out, examples) if self.windows else out

    @property
    def width(self) -> int:
        return 1

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        out = self._means(out, examples)
        return (out.squeeze(-1) - (as_tensor(targets, out) - self.mean) / self.std) ** 2

    def decode(self, out: Out, examples: Sequence[Example]) -> np.ndarray[Any, Any]:
        return (self._means(out, examples).double().squeeze(-1) * self.std + self.mean).numpy()

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        """Those that move by more than a tenth of the targets' standard deviation."""
        return int(((self._means(exact, examples) - self._means(out, examples)).abs() > 0.1).sum())

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Prediction]:
        if min_score is not None:
            raise UsageError("a regression has no score to abstain by.", hint="Leave --min-score out.")
        return [Prediction(value=value) for value in self.decode(out, examples).tolist()]

    def extra(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std} | ({"windows": True} if self.windows else {})
