"""Several numbers for a text or a pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from adaptree.data.columns import guess, must_have, split_names
from adaptree.data.form import Form, Row, TextForm
from adaptree.errors import DataError, UsageError
from adaptree.kinds import findings, metrics
from adaptree.kinds.findings import Evaluated, Section
from adaptree.kinds.kind import Aim, Example, Kind, Out, find_label, texts_of

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.data.encode import Encoder
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
MOST_TARGETS = 6
"""Numbers that a card shows."""


@dataclass(frozen=True)
class MultioutputForm(TextForm):
    """A column for each number: --label warmth,fear."""

    needs: ClassVar[str] = "A text, and several columns of numbers: --label COL,COL"
    many_label_columns: ClassVar[bool] = True

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        several = split_names(columns.get("label"), names)
        if not several:
            return None
        must_have(names, several)
        rest = [name for name in names if name not in several]
        found = guess(rest, sample, text=columns.get("text"), pair=columns.get("pair"), need_label=False)
        return cls(
            {"text": found.text, "pair": found.pair, "numbers": ",".join(several)},
            f"{', '.join(repr(name) for name in several)} are numbers",
        )

    @staticmethod
    def column_names(columns: Mapping[str, Any]) -> list[str]:
        return [column for column in (columns["text"], columns.get("pair"), *columns["numbers"].split(",")) if column]

    @property
    def names(self) -> list[str]:
        return str(self.columns["numbers"]).split(",")

    def target(self, row: Row, given: Any, number: int, name: str) -> list[float] | None:
        values = []
        for column in self.names:
            value = row.get(column)
            if value is None or (isinstance(value, str) and not value.strip()):
                return None
            try:
                values.append(float(value))
            except (TypeError, ValueError):
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                raise DataError(
                    f"row {number} of '{name}': '{str(value)[:60]}' in column '{column}' is not a finite number.",
                    hint="Correct or remove the row.",
                )
        return values


@dataclass(frozen=True)
class NumbersPrediction:
    """A number for each of the task's targets; None where the text is empty."""

    values: Mapping[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        return {"values": dict(self.values)}

    def columns(self) -> dict[str, Any]:
        return {f"prediction_{name}": value for name, value in self.values.items()}


@dataclass(frozen=True)
class Multioutput(Kind):
    """Each target is standardised by itself; its scores carry its name, and the mean over all is what counts."""

    name: ClassVar[str] = "multioutput"
    family: ClassVar[str] = "regress"
    form: ClassVar[type[Form]] = MultioutputForm
    metrics: ClassVar[tuple[str, ...]] = metrics.REGRESSION
    lower_is_better: ClassVar[tuple[str, ...]] = ("mse", "mae")
    priority: ClassVar[int | None] = 50
    majority: ClassVar[str] = "mean"
    target_name: ClassVar[str] = "number"
    measure: ClassVar[str] = "value"
    targets: tuple[str, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]

    @classmethod
    def from_data(cls, dataset: Dataset, rows: Array, encoder: Encoder, **options: Any) -> Self:
        assert isinstance(dataset.form, MultioutputForm)
        values = np.asarray(dataset.targets(rows), dtype=np.float64)
        stds = tuple(float(std) or 1.0 for std in values.std(0))
        return cls(tuple(dataset.form.names), tuple(values.mean(0).tolist()), stds, **options)

    @property
    def width(self) -> int:
        return len(self.targets)

    def problem(self) -> str:
        if not len(self.targets) == len(self.means) == len(self.stds) == len(set(self.targets)):
            return f"{len(self.targets)} targets have {len(self.means)} means and {len(self.stds)} standard deviations"
        return "" if all(std > 0 for std in self.stds) else "a standard deviation is not above 0"

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        import torch

        wanted, mean, std = (
            torch.tensor(x, dtype=out.dtype, device=out.device) for x in (targets, self.means, self.stds)
        )
        loss: Tensor = ((out - (wanted - mean) / std) ** 2).mean(-1)
        return loss

    def decode(self, out: Out, examples: Sequence[Example]) -> Array:
        return np.asarray(out.double().numpy() * np.array(self.stds) + np.array(self.means))

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        """Return how many have a number that moves by more than a tenth of its standard deviation."""
        return int(((exact - out).abs() > 0.1).any(-1).sum())

    def doubts(self, out: Out, examples: Sequence[Example]) -> None:
        return None

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[NumbersPrediction]:
        if min_score is not None:
            raise UsageError("a regression has no score to abstain by.", hint="Leave --min-score out.")
        rows = self.decode(out, examples).tolist()
        return [NumbersPrediction(dict(zip(self.targets, row, strict=True))) for row in rows]

    def no_prediction(self) -> NumbersPrediction:
        return NumbersPrediction(dict.fromkeys(self.targets))

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        """Return every number, or the one that is named."""
        some = range(self.width) if target is None else [find_label(target, self.targets, "number")]
        return [Aim(self.targets[at], at) for at in some]

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        found: Tensor = out[0, key] * self.stds[key] + self.means[key]
        return found

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        found = {name: metrics.regression(*pair) for name, pair in self._by_target(targets, answers).items()}
        means = {metric: float(np.mean([scores[metric] for scores in found.values()])) for metric in self.metrics}
        return means | {f"pearson_{name}": scores["pearson"] for name, scores in found.items()}

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        columns = self._by_target(targets, answers)
        found = {name: metrics.regression_intervals(*pair) for name, pair in columns.items()}
        return {f"pearson_{name}": spans["pearson"] for name, spans in found.items()}

    def _matrix(self, values: Any) -> Array:
        return np.asarray(values, dtype=np.float64).reshape(-1, len(self.targets))

    def _by_target(self, targets: Any, answers: Any) -> dict[str, tuple[Array, Array]]:
        gold, predicted = self._matrix(targets), self._matrix(answers)
        return {name: (gold[:, i], predicted[:, i]) for i, name in enumerate(self.targets)}

    @classmethod
    def describe(cls, record: Record) -> str:
        return f"Gives {texts_of(record)} {len(record.extra['targets'])} numbers."

    def findings(self, on: Evaluated) -> dict[str, Any]:
        gold, predicted = self._matrix(on.targets), self._matrix(on.answers)
        misses = findings.largest((((predicted - gold) / np.array(self.stds)) ** 2).mean(1))
        few = list(self.targets)[:MOST_TARGETS]

        def row(values: Array) -> str:
            return "; ".join(
                f"{findings.name(name)} {value:.4g}" for name, value in zip(few, values.tolist(), strict=False)
            )

        most = findings.MOST_POINTS // len(few)
        return {
            "targets": [findings.number_errors(name, gold[:, j], predicted[:, j], most) for j, name in enumerate(few)],
            "mistakes": [
                findings.texts(on.inputs[i]) | {"gold": row(gold[i]), "predicted": row(predicted[i])} for i in misses
            ],
        }

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        return findings.number_sections(found, record)

    @classmethod
    def outputs(cls, record: Record) -> Any:
        return record.extra["targets"]

    @classmethod
    def scale(cls, record: Record) -> tuple[list[float], list[float]] | None:
        return record.extra["means"], record.extra["stds"]
