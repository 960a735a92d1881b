"""What a kind of task is: what is computed for an input, the head on top of the base, loss, answers and score.

An input becomes an example: one row of tokens, or several (the windows of a long document, the choices of a
question). The head reads one vector per row, or one per token; the kind learns and predicts from its output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptree.core.bottleneck import truncated_normal
from adaptree.data.encode import Encoder, Encoding
from adaptree.errors import UsageError, near
from adaptree.kinds import metrics
from adaptree.methods import Params

if TYPE_CHECKING:
    from adaptree.tasks.task import Record

POOLINGS = ("mean", "first", "last")
MOST_ROWS = 8
"""Of one input in one step of training."""

Example = list[Encoding]
Out = Tensor | list[Tensor]
"""The head's output by row: (rows, width), or for heads that read tokens a (tokens, width) for each row."""
Targets = Any
"""What is right, of several inputs: an array, or a list of what the kind's files hold."""
Answers = Any
"""What is scored against the targets, of several inputs."""


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

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """What is computed for each input."""
        return [[row] for row in encoder.encode(as_texts(inputs), max_length)]

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The head at birth."""
        return {"head.weight": truncated_normal((self.width, d), 0.02, generator), "head.bias": torch.zeros(self.width)}

    resamples: ClassVar[bool] = False
    """Whether what is computed for an input is drawn anew in every step."""

    def resampled(self, examples: Sequence[Example], seed: int | None) -> Sequence[Example]:
        """The examples of one step, drawn by `seed`; without one, as they are always drawn when they are scored."""
        return examples

    def for_training(self, example: Example, gold: Any) -> Example:
        """The rows of a long input that one step computes; an input of few rows has all of them."""
        return example if len(example) <= MOST_ROWS else example[:: -(-len(example) // MOST_ROWS)]

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Targets) -> Kind:
        """This kind with what is chosen on validation, such as a threshold."""
        return self

    def state(self) -> dict[str, Any]:
        """Return what `calibrated` chose, as JSON: a checkpoint keeps it."""
        return {"threshold": self.threshold} if hasattr(self, "threshold") else {}

    def with_state(self, state: Mapping[str, Any]) -> Kind:
        """Return this kind with what `state` gave."""
        return replace(self, **state) if state else self  # type: ignore[type-var]

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, embeddings: Tensor
    ) -> Out:
        """The head on last hidden states, (B, T, d): what it gives for each row; `embeddings` are the base's words'."""
        if not self.reads_tokens:
            return linear(pool(hidden, mask, pooling), v).float()
        B, T, d = hidden.shape
        out = linear(hidden.reshape(B * T, d), v).float().view(B, T, -1)
        return [out[i, : len(row.ids)] for i, row in enumerate(rows)]

    @abstractmethod
    def loss(self, out: Out, examples: Sequence[Example], targets: Targets, weights: Tensor | None = None) -> Tensor:
        """The loss of each input, (n,)."""

    @abstractmethod
    def decode(self, out: Out, examples: Sequence[Example]) -> Answers:
        """What is scored against the targets."""

    @abstractmethod
    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Any]:
        """What a user is told, an object with `to_dict` and `columns` for each input."""

    @abstractmethod
    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        """How many answers are other ones than those that the exact output gives."""

    def score(self, targets: Targets, answers: Answers) -> dict[str, float]:
        return metrics.score(self.name, targets, answers)

    def intervals(self, targets: Targets, answers: Answers) -> Mapping[str, tuple[float, float]]:
        """The 95 % interval of every metric."""
        return metrics.intervals(self.name, targets, answers)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        """What a user asks about, as `examples` takes it; what the task does not take is refused."""
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


def as_tensor(targets: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    return torch.from_numpy(targets).to(like.device)


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
