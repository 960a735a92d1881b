"""Kinds of task: what stands on top of the base, what it is trained on, and the form of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.core.bottleneck import truncated_normal
from adaptree.errors import UsageError, near
from adaptree.methods import Params

if TYPE_CHECKING:
    from adaptree.data.table import Table
    from adaptree.task import Record

POOLINGS = ("mean", "first", "last")


@dataclass(frozen=True)
class Prediction:
    """A label with its probability and everyone's, or a value. `label` is None where the task abstains."""

    label: str | int | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        if self.value is not None:
            return {"value": self.value}
        return {"label": self.label, "score": self.score, "scores": self.scores}


def pool(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """One vector per text: (B, T, d), (B, T) -> (B, d)."""
    if how == "mean":
        m = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * m).sum(1) / m.sum(1)
    at = mask.sum(1) - 1 if how == "last" else torch.zeros(len(mask), dtype=torch.long, device=mask.device)
    return hidden[torch.arange(len(mask), device=mask.device), at]


class Kind(Protocol):
    """A kind of task. Its head is one linear map over the pooled state: `head.weight` and `head.bias`."""

    name: ClassVar[str]

    @property
    def width(self) -> int: ...
    def loss(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss of each row, (B,)."""
        ...

    def answer(self, logits: Tensor) -> np.ndarray[Any, Any]:
        """What is scored against the targets: class numbers, or values."""
        ...

    def changed(self, exact: Tensor, logits: Tensor) -> int:
        """How many answers are other ones than the exact logits give."""
        ...

    def predictions(self, logits: Tensor, min_score: float | None = None) -> list[Prediction]: ...
    def extra(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Classify:
    """One of several labels for a text or a pair."""

    name: ClassVar[str] = "classify"
    labels: tuple[str | int, ...]

    @property
    def width(self) -> int:
        return len(self.labels)

    def loss(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.cross_entropy(logits, targets.long(), weight=weights, reduction="none")

    def answer(self, logits: Tensor) -> np.ndarray[Any, Any]:
        return logits.argmax(-1).numpy()

    def changed(self, exact: Tensor, logits: Tensor) -> int:
        return int((self.answer(exact) != self.answer(logits)).sum())

    def predictions(self, logits: Tensor, min_score: float | None = None) -> list[Prediction]:
        out = []
        for row in logits.double().softmax(-1).tolist():
            scores = {str(label): score for label, score in zip(self.labels, row, strict=True)}
            best = max(range(len(row)), key=row.__getitem__)
            sure = min_score is None or row[best] >= min_score
            out.append(Prediction(label=self.labels[best] if sure else None, score=row[best], scores=scores))
        return out

    def extra(self) -> dict[str, Any]:
        return {}

    def balance(self, targets: np.ndarray[Any, Any]) -> Tensor:
        """Weights that give every label the same say: rows / (labels · rows of the label)."""
        counts = np.bincount(targets, minlength=self.width).clip(min=1)
        return torch.tensor(len(targets) / (self.width * counts), dtype=torch.float32)


@dataclass(frozen=True)
class Regress:
    """A number for a text or a pair; trained on standardised targets."""

    name: ClassVar[str] = "regress"
    mean: float
    std: float

    @property
    def width(self) -> int:
        return 1

    def loss(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        return (logits.squeeze(-1) - (targets - self.mean) / self.std) ** 2

    def answer(self, logits: Tensor) -> np.ndarray[Any, Any]:
        return (logits.double().squeeze(-1) * self.std + self.mean).numpy()

    def changed(self, exact: Tensor, logits: Tensor) -> int:
        """Those that move by more than a tenth of the targets' standard deviation, which logits are measured in."""
        return int(((exact - logits).abs() > 0.1).sum())

    def predictions(self, logits: Tensor, min_score: float | None = None) -> list[Prediction]:
        if min_score is not None:
            raise UsageError("a regression has no score to abstain by.", hint="Leave --min-score out.")
        return [Prediction(value=value) for value in self.answer(logits).tolist()]

    def extra(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std}


def init(kind: Kind, d: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {"head.weight": truncated_normal((kind.width, d), 0.02, generator), "head.bias": torch.zeros(kind.width)}


def apply(pooled: Tensor, v: Params) -> Tensor:
    """(B, d) -> (B, labels), row by row: the bits of one product over all rows depend on how many there are."""
    w, b = v["head.weight"], v["head.bias"]
    B = len(pooled)
    return torch.baddbmm(b.expand(B, 1, -1), pooled.unsqueeze(1), w.t().expand(B, -1, -1)).squeeze(1)


def for_table(table: Table, rows: np.ndarray[Any, Any]) -> Kind:
    """The kind that fits a table of data, with what it learns from its training rows."""
    if table.kind == "classify":
        return Classify(table.labels)
    targets = table.targets[rows].astype(np.float64)
    return Regress(float(targets.mean()), float(targets.std()) or 1.0)


def for_record(record: Record) -> Kind:
    if record.kind == "classify":
        return Classify(tuple(record.labels))
    if record.kind == "regress":
        return Regress(record.extra["mean"], record.extra["std"])
    raise UsageError(f"the task '{record.name}' is of kind '{record.kind}', which answers no texts.")


def check_pooling(how: str) -> str:
    if how not in POOLINGS:
        raise UsageError(f"no pooling '{how}'.", hint=near(how, POOLINGS) or f"There are: {', '.join(POOLINGS)}.")
    return how


def as_texts(inputs: Sequence[Any]) -> list[str | tuple[str, str]]:
    """Texts, or pairs of texts, as the encoder takes them."""
    out: list[str | tuple[str, str]] = []
    for item in inputs:
        if isinstance(item, str):
            out.append(item)
        elif isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item):
            out.append((item[0], item[1]))
        else:
            raise UsageError(f"an input must be a text or a pair of texts, not {item!r:.60}.")
    return out
