"""Several numbers for a text or a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptree.errors import UsageError
from adaptree.kinds import metrics
from adaptree.kinds.kind import Example, Kind, Out

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Values:
    """A number for each of the task's targets."""

    values: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def columns(self) -> dict[str, Any]:
        return {f"prediction_{name}": value for name, value in self.values.items()}


@dataclass(frozen=True)
class Numbers(Kind):
    """Each target is standardised by itself; its scores carry its name, and the mean over all is what counts."""

    name: ClassVar[str] = "regress"
    targets: tuple[str, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.targets)

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        assert isinstance(out, Tensor)
        gold, mean, std = (
            torch.tensor(x, dtype=out.dtype, device=out.device) for x in (targets, self.means, self.stds)
        )
        return ((out - (gold - mean) / std) ** 2).mean(-1)

    def decode(self, out: Out, examples: Sequence[Example]) -> Array:
        assert isinstance(out, Tensor)
        return np.asarray(out.double().numpy() * np.array(self.stds) + np.array(self.means))

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        """Those of which a number moves by more than a tenth of its standard deviation."""
        assert isinstance(exact, Tensor)
        assert isinstance(out, Tensor)
        return int(((exact - out).abs() > 0.1).any(-1).sum())

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Values]:
        if min_score is not None:
            raise UsageError("a regression has no score to abstain by.", hint="Leave --min-score out.")
        return [Values(dict(zip(self.targets, row, strict=True))) for row in self.decode(out, examples).tolist()]

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        columns = self._by_target(targets, answers)
        found = {name: metrics.score("regress", gold, said) for name, (gold, said) in columns.items()}
        first = next(iter(found.values()))
        means = {metric: float(np.mean([scores[metric] for scores in found.values()])) for metric in first}
        return means | {f"pearson_{name}": scores["pearson"] for name, scores in found.items()}

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        columns = self._by_target(targets, answers)
        found = {name: metrics.intervals("regress", gold, said) for name, (gold, said) in columns.items()}
        return {f"pearson_{name}": spans["pearson"] for name, spans in found.items()}

    def _by_target(self, targets: Any, answers: Any) -> dict[str, tuple[Array, Array]]:
        gold, said = np.asarray(targets, dtype=np.float64), np.asarray(answers, dtype=np.float64)
        gold, said = (x.reshape(-1, len(self.targets)) for x in (gold, said))
        return {name: (gold[:, i], said[:, i]) for i, name in enumerate(self.targets)}

    def extra(self) -> dict[str, Any]:
        return {"targets": list(self.targets), "means": list(self.means), "stds": list(self.stds)}
