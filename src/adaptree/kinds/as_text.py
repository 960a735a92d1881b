"""Labels as text: a language model reads the input once with each label after it, and the likeliest is the answer.

There is no head: the output layer is the base's own. A label's number is the log-likelihood of its tokens and of the
token that ends them, and what is learned is that the right label's is the highest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from adaptree.data.encode import Encoder, Encoding
from adaptree.data.writer import CHAT
from adaptree.errors import UsageError
from adaptree.kinds.classify import Classify
from adaptree.kinds.generate import Generate, shown, writer_of
from adaptree.kinds.kind import Aim, Example, Kind, Out, as_texts, by_example, texts_of
from adaptree.methods import Params

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.tasks.record import Record

MOST_LABELS = 20
"""Every label is read by itself: with more of them a step would take too long."""
TEMPLATE = "{input}\nLabel:"


@dataclass(frozen=True)
class AsText(Classify):
    """Kind classify with the setting `as_text`, as it is of data and of a record."""

    linear_head: ClassVar[bool] = False
    contrasts: ClassVar[bool] = False

    @classmethod
    def of(cls, labels: Sequence[Any], encoder: Encoder, options: Mapping[str, Any]) -> Self:
        """Return the kind for some labels on a base; raise UsageError, or BaseError, where it cannot be."""
        writer = writer_of(encoder)
        template = writer.check(options.get("template") or TEMPLATE)
        if len(labels) > MOST_LABELS:
            raise UsageError(
                f"--as-text reads every text once for each label, and here are {len(labels)}: at most {MOST_LABELS}.",
                hint="Leave out --as-text.",
            )
        temperature = float(options.get("temperature", 1.0))
        return cls(tuple(labels), temperature=temperature, as_text=True, template=template)

    @classmethod
    def from_data(cls, dataset: Dataset, rows: Any, encoder: Encoder, **options: Any) -> Self:
        return cls.of(dataset.labels, encoder, options)

    @classmethod
    def from_record(cls, record: Record, encoder: Encoder) -> Self:
        return cls.of(record.labels, encoder, record.extra)

    def extra(self) -> dict[str, Any]:
        return {**super().extra(), "as_text": True, "template": self.template}

    @property
    def single(self) -> bool:
        return False

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Return a row for each label, in their order: the text in the template, and the label after it."""
        # A label is written as a word of its own; in a chat nothing stands before it.
        space = "" if self.template == CHAT or self.template[-1].isspace() else " "
        names = [f"{space}{label}" for label in self.labels]
        texts = [text if isinstance(text, str) else "\n".join(text) for text in as_texts(inputs)]
        asked = [{"prompt": text} for text in texts for _ in names]
        rows = [row for (row,) in self._writing(encoder).taught(encoder, asked, names * len(texts), max_length)]
        return [rows[i : i + len(names)] for i in range(0, len(rows), len(names))]

    def _writing(self, encoder: Encoder) -> Generate:
        return Generate(encoder.vocabulary, self.template)

    def for_training(self, example: Example, target: Any) -> Example:
        return example

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, words: Tensor
    ) -> Out:
        """Return the log-likelihood of each row's label, (rows, 1)."""
        import torch

        told = Generate(0, self.template).run(hidden, mask, rows, v, pooling, words)
        return torch.stack([-part[:, :1].sum(0) for part in told])

    def _votes(self, out: Out, examples: Sequence[Example]) -> Tensor:
        import torch

        parts = [part[:, 0] for part in by_example(out, examples)]
        return torch.stack(parts) if parts else torch.zeros(0, len(self.labels))

    def layout(self, encoder: Encoder, given: Any, example: Example, max_length: int) -> Any:
        raise UsageError("a task that reads labels as text cannot be explained word by word.")

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        raise UsageError("a task that reads labels as text cannot be explained word by word.")

    def problem(self) -> str:
        return Kind.problem(self)


def describe(record: Record) -> str:
    """Return what a task that reads labels as text does, in one sentence."""
    return (
        f"Puts {texts_of(record)} under the likeliest of {len(record.labels)} labels, read as text after "
        f"{shown(record)}."
    )


def check_settings(settings: Any, method: Any, joint: bool) -> None:
    """Raise UsageError for settings that do not go with labels as text."""
    wrong = {
        "--joint": joint,
        "--windows": settings.windows,
        "--pooling": settings.pooling is not None,
        "--objective": settings.objective not in (None, "cross-entropy"),
    }
    for name, given in wrong.items():
        if given:
            raise UsageError(f"{name} does not go with --as-text.", hint=f"Leave out {name}, or --as-text.")
    if method.standalone or method.name == "head":
        raise UsageError(f"labels as text need no head, and {method.name} trains nothing else.", hint="--method lora")
