"""What a kind of task is: what is computed for an input, the head on top of the base, loss, answers and score.

An input becomes a unit: one row of tokens, or several (the windows of a long document, the choices of a question). The
head reads one vector for each row, or one for each token, and gives for each row what the kind learns and answers from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptree import metrics
from adaptree.core.bottleneck import truncated_normal
from adaptree.data.encode import Encoder, Row
from adaptree.errors import UsageError, near
from adaptree.methods import Params

if TYPE_CHECKING:
    from adaptree.task import Record

POOLINGS = ("mean", "first", "last")
MOST_ROWS = 8
"""Of one input in one step of training."""

Unit = list[Row]
Out = Tensor | list[Tensor]
"""The head's output by row: (rows, width), or for heads that read tokens a (tokens, width) for each row."""
Golds = Any
"""What is right, of several inputs: an array, or a list of what the kind's files hold."""
Answers = Any
"""What is scored against the golds, of several inputs."""


@dataclass(frozen=True)
class Prediction:
    """A label with its probability and everyone's, or a value. `label` is None where the task abstains."""

    label: str | int | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As `predict --format jsonl` prints it."""
        if self.value is not None:
            return {"value": self.value}
        return {"label": self.label, "score": self.score, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        """As columns beside the input's."""
        if self.value is not None:
            return {"prediction": self.value}
        return {"prediction": self.label, "score": self.score}


class Kind(ABC):
    """A kind of task, with what it has learned of its labels. Values: two that are equal do the same."""

    name: ClassVar[str]
    reads_tokens: ClassVar[bool] = False
    """Whether the head reads every token's state, and not one vector for a row."""

    @property
    def single(self) -> bool:
        """Whether an input is one row and its output one vector, whatever the input."""
        return not self.reads_tokens

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers the head gives for a vector."""

    def units(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Unit]:
        """What is computed for each input."""
        return [[row] for row in encoder.encode(as_texts(inputs), max_length)]

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The head at birth."""
        return {"head.weight": truncated_normal((self.width, d), 0.02, generator), "head.bias": torch.zeros(self.width)}

    draws: ClassVar[bool] = False
    """Whether what is computed for an input is drawn anew in every step."""

    def drawn(self, units: Sequence[Unit], seed: int | None) -> Sequence[Unit]:
        """The units of one step, drawn by `seed`; without one, as they are always drawn when they are scored."""
        return units

    def for_training(self, unit: Unit, gold: Any) -> Unit:
        """The rows of a long input that one step computes; an input of few rows has all of them."""
        return unit if len(unit) <= MOST_ROWS else unit[:: -(-len(unit) // MOST_ROWS)]

    def settled(self, out: Out, units: Sequence[Unit], golds: Golds) -> Kind:
        """This kind with what is chosen on validation, such as a threshold."""
        return self

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Row], v: Params, pooling: str, embeddings: Tensor
    ) -> Out:
        """The head on last hidden states, (B, T, d): what it gives for each row; `embeddings` are the base's words'."""
        if not self.reads_tokens:
            return linear(pool(hidden, mask, pooling), v).float()
        B, T, d = hidden.shape
        out = linear(hidden.reshape(B * T, d), v).float().view(B, T, -1)
        return [out[i, : len(row.ids)] for i, row in enumerate(rows)]

    @abstractmethod
    def loss(self, out: Out, units: Sequence[Unit], golds: Golds, weights: Tensor | None = None) -> Tensor:
        """The loss of each input, (n,)."""

    @abstractmethod
    def answers(self, out: Out, units: Sequence[Unit]) -> Answers:
        """What is scored against the golds."""

    @abstractmethod
    def predictions(self, out: Out, units: Sequence[Unit], inputs: Sequence[Any], min_score: float | None) -> list[Any]:
        """What a user is told, an object with `to_dict` and `columns` for each input."""

    @abstractmethod
    def changed(self, exact: Out, out: Out, units: Sequence[Unit]) -> int:
        """How many answers are other ones than those that the exact output gives."""

    def score(self, golds: Golds, answers: Answers) -> dict[str, float]:
        return metrics.score(self.name, golds, answers)

    def intervals(self, golds: Golds, answers: Answers) -> Mapping[str, tuple[float, float]]:
        """The 95 % interval of every metric."""
        return metrics.intervals(self.name, golds, answers)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        """What a user asks about, as `units` takes it; what the task does not take is refused."""
        texts = as_texts([inputs] if isinstance(inputs, str) else inputs)
        pair = bool(record.columns.get("pair"))
        if any(isinstance(text, tuple) != pair for text in texts):
            takes, such = ("two texts", '("a text", "the text beside it")') if pair else ("one text", '"a text"')
            raise UsageError(f"the task '{record.name}' takes {takes} for each answer.", hint=f"Give {such}.")
        return texts

    def line(self, line: str, record: Record) -> Any:
        """One line that a user typed, as an input; what belongs together is separated by tabs."""
        if not record.columns.get("pair"):
            return line
        first, tab, second = line.partition("\t")
        if not tab:
            raise UsageError(f"the task '{record.name}' takes two texts: separate them with a tab.")
        return first, second

    def extra(self) -> dict[str, Any]:
        """What a task's record must say for `for_record` to make this kind again, beside its labels."""
        return {}


def pool(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """One vector per text: (B, T, d), (B, T) -> (B, d)."""
    if how == "mean":
        m = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * m).sum(1) / m.sum(1)
    at = mask.sum(1) - 1 if how == "last" else torch.zeros(len(mask), dtype=torch.long, device=mask.device)
    return hidden[torch.arange(len(mask), device=mask.device), at]


def linear(x: Tensor, v: Params) -> Tensor:
    """(N, d) -> (N, width), row by row: the bits of one product over all rows depend on how many there are."""
    w, b = v["head.weight"], v["head.bias"]
    N = len(x)
    return torch.baddbmm(b.expand(N, 1, -1), x.unsqueeze(1), w.t().expand(N, -1, -1)).squeeze(1)


def as_tensor(golds: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    return torch.from_numpy(golds).to(like.device)


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
