"""The right one of several choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptree.data.encode import Encoder
from adaptree.errors import UsageError
from adaptree.kinds import metrics
from adaptree.kinds.kind import Example, Kind, Out

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

PLACE = "_"
"""Where a text has it once, the choice goes there."""


@dataclass(frozen=True)
class Chosen:
    """The choice, its number from 0, its probability and everyone's."""

    choice: str | None
    number: int
    score: float
    scores: list[float]

    def to_dict(self) -> dict[str, Any]:
        return {"choice": self.choice, "number": self.number, "score": self.score, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.choice, "score": self.score}


@dataclass(frozen=True)
class Choose(Kind):
    """Each choice is a row, beside the text or in its place; the head gives it a number, the highest is chosen."""

    name: ClassVar[str] = "choose"

    @property
    def width(self) -> int:
        return 1

    @property
    def single(self) -> bool:
        return False

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        texts: list[Any] = []
        for given in inputs:
            filled = given["text"].count(PLACE) == 1
            for choice in given["choices"]:
                texts.append(given["text"].replace(PLACE, choice) if filled else (given["text"], choice))
        rows: list[Any] = [None] * len(texts)
        for pair in (False, True):  # the tokenizer takes one or the other in a batch
            at = [i for i, text in enumerate(texts) if isinstance(text, tuple) == pair]
            for i, row in zip(at, encoder.encode([texts[i] for i in at], max_length) if at else [], strict=True):
                rows[i] = row
        ends = np.cumsum([len(given["choices"]) for given in inputs]).tolist()
        return [rows[end - len(given["choices"]) : end] for given, end in zip(inputs, ends, strict=True)]

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        parts = [-part.log_softmax(0)[gold] for part, gold in zip(_parts(out, examples), targets, strict=True)]
        return torch.stack(parts) if parts else torch.zeros(0)

    def decode(self, out: Out, examples: Sequence[Example]) -> list[int]:
        return [int(part.argmax()) for part in _parts(out, examples)]

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        return sum(a != b for a, b in zip(self.decode(exact, examples), self.decode(out, examples), strict=True))

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Chosen]:
        found = []
        for part, given in zip(_parts(out, examples), inputs, strict=True):
            scores = part.double().softmax(0).tolist()
            best = max(range(len(scores)), key=scores.__getitem__)
            sure = min_score is None or scores[best] >= min_score
            found.append(Chosen(given["choices"][best] if sure else None, best, scores[best], scores))
        return found

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return {
            "accuracy": metrics.score("classify", _right(targets, answers), _ones(targets), labels=(0, 1))["accuracy"]
        }

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        found = metrics.intervals("classify", _right(targets, answers), _ones(targets), labels=(0, 1))
        return {"accuracy": found["accuracy"]}

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        found = []
        for item in [inputs] if isinstance(inputs, Mapping) else inputs:
            if isinstance(item, tuple) and len(item) == 2:
                item = {"text": item[0], "choices": item[1]}
            if not isinstance(item, Mapping) or not isinstance(item.get("text"), str) or not _choices(item):
                raise UsageError(
                    f"the task '{record.name}' takes a text and its choices, not {item!r:.60}.",
                    hint='Give {"text": "…", "choices": ["…", "…"]}.',
                )
            found.append({"text": item["text"], "choices": list(item["choices"])})
        return found

    def line(self, line: str, record: Record) -> Any:
        text, *choices = line.split("\t")
        if len(choices) < 2:
            raise UsageError(f"the task '{record.name}' takes a text and two choices or more, separated by tabs.")
        return {"text": text, "choices": choices}


def _choices(item: Mapping[str, Any]) -> bool:
    found = item.get("choices")
    return isinstance(found, list | tuple) and len(found) > 1 and all(isinstance(choice, str) for choice in found)


def _parts(out: Out, examples: Sequence[Example]) -> Iterator[Tensor]:
    """Each input's numbers, one for a choice."""
    assert isinstance(out, Tensor)
    start = 0
    for example in examples:
        yield out[start : start + len(example), 0]
        start += len(example)


def _right(targets: Any, answers: Any) -> np.ndarray[Any, Any]:
    return np.array([int(a == b) for a, b in zip(targets, answers, strict=True)], dtype=np.int64)


def _ones(targets: Any) -> np.ndarray[Any, Any]:
    return np.ones(len(targets), dtype=np.int64)
