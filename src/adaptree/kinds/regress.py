"""A number for a text or a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from adaptree.data.form import Form, LabelForm
from adaptree.data.target_column import TargetColumn
from adaptree.errors import UsageError
from adaptree.kinds import findings, metrics, windows
from adaptree.kinds.classify import MOST_NUMERIC_LABELS
from adaptree.kinds.findings import Evaluated, Section
from adaptree.kinds.kind import Aim, Example, Out, Prediction, as_tensor, hidden_problem, texts_of
from adaptree.kinds.windows import Windowed

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.data.encode import Encoder
    from adaptree.tasks.record import Record


@dataclass(frozen=True)
class NoNumber(Prediction):
    """The prediction of a text that is empty."""

    def to_dict(self) -> dict[str, Any]:
        return {"value": None}

    def columns(self) -> dict[str, Any]:
        return {"prediction": None}


@dataclass(frozen=True)
class Regress(Windowed):
    """Trained on standardised targets: an output of 1 is one standard deviation above the mean."""

    name: ClassVar[str] = "regress"
    form: ClassVar[type[Form]] = LabelForm
    metrics: ClassVar[tuple[str, ...]] = metrics.REGRESSION
    lower_is_better: ClassVar[tuple[str, ...]] = ("mse", "mae")
    priority: ClassVar[int | None] = 91
    numeric: ClassVar[bool] = True
    baselines: ClassVar[bool] = True
    linear_outside: ClassVar[bool] = True
    majority: ClassVar[str] = "mean"
    target_name: ClassVar[str] = "number"
    measure: ClassVar[str] = "value"
    mean: float
    std: float
    windows: bool = False
    """Whether a long text is read whole, in windows of which the mean counts, and not cut."""
    hidden: str = ""
    """The activation of a hidden layer in the head, as tasks of other libraries have it; '' for none."""

    @staticmethod
    def takes(column: TargetColumn) -> str | None:
        if not column.all_numbers:
            return None
        column.check_finite()
        if column.fractions:
            return "every label is a number and some have a fractional part"
        if column.overflow or column.distinct > MOST_NUMERIC_LABELS:
            return f"every label is a number and there are {column.count} different ones"
        return None

    @classmethod
    def from_data(cls, dataset: Dataset, rows: np.ndarray[Any, Any], encoder: Encoder, **options: Any) -> Self:
        targets = dataset.targets(rows).astype(np.float64)
        return cls(float(targets.mean()), float(targets.std()) or 1.0, **options)

    @property
    def width(self) -> int:
        return 1

    def problem(self) -> str:
        if self.std <= 0:
            return f"a standard deviation of {self.std:g} is not above 0"
        return hidden_problem(self.hidden)

    def _means(self, out: Out, examples: Sequence[Example]) -> Tensor:
        return windows.means(out, examples) if self.windows else out

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        out = self._means(out, examples)
        loss: Tensor = (out.squeeze(-1) - (as_tensor(targets, out) - self.mean) / self.std) ** 2
        return loss

    def bag_targets(self, targets: Any) -> tuple[list[Any], int]:
        return ((targets - self.mean) / self.std).tolist(), 0

    def decode(self, out: Out, examples: Sequence[Example]) -> np.ndarray[Any, Any]:
        return (self._means(out, examples).double().squeeze(-1) * self.std + self.mean).numpy()

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        """Return how many move by more than a tenth of the targets' standard deviation."""
        return int(((self._means(exact, examples) - self._means(out, examples)).abs() > 0.1).sum())

    def doubts(self, out: Out, examples: Sequence[Example]) -> None:
        return None

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Prediction]:
        if min_score is not None:
            raise UsageError("a regression has no score to abstain by.", hint="Leave --min-score out.")
        return [Prediction(value=value) for value in self.decode(out, examples).tolist()]

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        if target is not None:
            raise UsageError("the task gives one number, and no label to choose.", hint="Leave out --target.")
        return [Aim("value", 0)]

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        found: Tensor = self._means(out, [example])[0, 0] * self.std + self.mean
        return found

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return metrics.regression(targets, answers)

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return metrics.regression_intervals(targets, answers)

    def extra(self) -> dict[str, Any]:
        whole = ({"windows": True} if self.windows else {}) | ({"hidden": self.hidden} if self.hidden else {})
        return {"mean": self.mean, "std": self.std} | whole

    def no_prediction(self) -> NoNumber:
        return NoNumber()

    @classmethod
    def describe(cls, record: Record) -> str:
        return f"Gives {texts_of(record)} a number."

    def findings(self, on: Evaluated) -> dict[str, Any]:
        gold, answers = np.asarray(on.targets, dtype=np.float64), np.asarray(on.answers, dtype=np.float64)
        misses = findings.largest(np.abs(answers - gold))
        return {
            "targets": [findings.number_errors("", gold, answers, findings.MOST_POINTS)],
            "mistakes": [findings.texts(on.inputs[i]) | {"gold": gold[i], "predicted": answers[i]} for i in misses],
        }

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        return findings.number_sections(found, record)

    @classmethod
    def scale(cls, record: Record) -> tuple[list[float], list[float]] | None:
        return [record.extra["mean"]], [record.extra["std"]]
