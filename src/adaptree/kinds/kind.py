"""What a kind of task is: how files are read, the head on top of the base, loss, predictions, metrics and card.

An input becomes an example: one encoded row of tokens, or several (the windows of a long document, the choices of a
question). The head reads one vector per row, or one per token; the kind learns and predicts from its output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from adaptree.data.cells import is_empty
from adaptree.data.encode import Encoder, Encoding, Layout
from adaptree.data.form import Form
from adaptree.errors import UsageError, near
from adaptree.kinds import metrics
from adaptree.kinds.findings import Evaluated, Section
from adaptree.methods import Params
from adaptree.methods.method import Shapes, shapes_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.data.target_column import TargetColumn
    from adaptree.tasks.record import Record

KINDS: dict[str, type[Kind]] = {}
"""Every kind that has been imported, by its name."""
POOLINGS = ("mean", "first", "last")
MOST_ROWS = 8
"""The most rows of one input that a training step computes."""

DENSE = "head.dense"
"""The hidden layer of a head that has one, as those of other libraries do; a field `hidden` names its activation."""

Example = list[Encoding]
Out = Any
"""The head's output by row: a tensor (rows, width), or for heads that read tokens a list of (tokens, width)."""
Targets = Any
"""The targets of several inputs: an array, or a list of values as the kind's form reads them."""
Answers = Any
"""The decoded predictions for several inputs, as they are scored against the targets."""


@dataclass(frozen=True)
class Prediction:
    """A label with its probability and those of all labels, or a number; `label` is None where the task abstains."""

    label: str | int | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as `predict --format jsonl` prints it."""
        if self.value is not None:
            return {"value": self.value}
        return {"label": self.label, "score": self.score, "scores": self.scores}

    def columns(self) -> dict[str, Any]:
        """Return the prediction as columns beside the input's."""
        if self.value is not None:
            return {"prediction": self.value}
        return {"prediction": self.label, "score": self.score}


class Aim(NamedTuple):
    """What is explained of a prediction: a label, a number, an entity, an answer."""

    name: str
    key: Any
    """What `Kind.evidence` knows it by."""
    probability: float | None = None
    start: int | None = None
    """Its characters in the text, where it is a part of it."""
    end: int | None = None


class Kind(ABC):
    """A kind of task, with what it knows of its labels and has chosen on validation: a frozen dataclass.

    A class with a `name` and a `form` registers itself. Other packages offer theirs as entry points of the group
    'adaptree.kinds'; importing one must not import torch.
    """

    name: ClassVar[str]
    family: ClassVar[str] = ""
    """A second name under which --kind tries it: --kind classify tries multilabel too."""
    form: ClassVar[type[Form]]
    """How its files are read."""
    metrics: ClassVar[tuple[str, ...]]
    """The names of its metrics; a task is judged by the first, unless the user names another."""
    lower_is_better: ClassVar[tuple[str, ...]] = ()
    """Which of its metrics are errors."""
    priority: ClassVar[int | None] = None
    """In which order files are tried for a kind that the user does not name; None where it must be named."""
    endings: ClassVar[tuple[str, ...]] = ()
    """The only file endings for which it is tried unless the user names it; () for any."""
    numeric: ClassVar[bool] = False
    """Whether a target is a number, where a target is one value (`form.one_value`)."""
    baselines: ClassVar[bool] = False
    """Whether the cheap baselines are scored beside it: for targets that are one value (`form.one_value`)."""
    linear_outside: ClassVar[bool] = False
    """Whether a linear model outside the base can stand for the head (`bag_targets`), as the method tfidf does."""
    weighs_classes: ClassVar[bool] = False
    """Whether it has `class_weights`."""
    reads_tokens: ClassVar[bool] = False
    """Whether the head reads every token's state, and not one vector for a row."""
    reads_whole: ClassVar[bool] = False
    """Whether a long input is always read whole, in windows, and not cut."""
    resamples: ClassVar[bool] = False
    """Whether every training step resamples its examples, as masking does (`resampled`)."""
    generates: ClassVar[bool] = False
    """Whether a prediction is a text that the base writes, token by token (`adaptree.models.generation`)."""
    linear_head: ClassVar[bool] = True
    """Whether the head is a linear map, so that the mean of several heads is one too."""
    contrasts: ClassVar[bool] = False
    """Whether examples can be contrasted by their targets, as contrastive training does (`alike`)."""
    chosen: ClassVar[tuple[str, ...]] = ()
    """Fields that `calibrated` chooses on validation."""
    majority: ClassVar[str] = "majority class"
    """What a card calls the baseline that ignores the text."""
    target_name: ClassVar[str] = "answer"
    """What a card calls a target; '' where an input is its own."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and hasattr(cls, "form"):
            KINDS[cls.name] = cls
            metrics.LOWER_IS_BETTER.update(cls.lower_is_better)

    # How it is made: of data, of a record.

    @staticmethod
    def takes(column: TargetColumn) -> str | None:
        """Return why a column of labels is of this kind, or None; called where the user names no kind."""
        return None

    @classmethod
    def from_data(cls, dataset: Dataset, rows: np.ndarray[Any, Any], encoder: Encoder, **options: Any) -> Self:
        """Return the kind for a dataset, with what it learns from the examples to train on."""
        return cls(**(_own(cls, {"labels": dataset.labels}) | options))

    @classmethod
    def from_record(cls, record: Record, encoder: Encoder) -> Self:
        """Return the kind of a stored task."""
        return cls(**_own(cls, {"labels": record.labels, **record.extra}))

    def extra(self) -> dict[str, Any]:
        """Return what a task's record must hold for `from_record`, beside the labels: by default all fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "labels"}  # type: ignore[arg-type]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Targets) -> Self:
        """Return this kind with what is chosen on validation, such as a threshold."""
        return self

    def state(self) -> dict[str, Any]:
        """Return what was chosen on validation, as a checkpoint keeps it."""
        return {name: getattr(self, name) for name in self.chosen}

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return this kind with what another has chosen."""
        own = {name: tuple(value) if isinstance(value, list) else value for name, value in state.items()}
        return replace(self, **own) if own else self  # type: ignore[type-var]

    # What is computed: examples, head, loss, answers.

    @property
    def single(self) -> bool:
        """Whether an input is one row and its output one vector, whatever the input."""
        return not self.reads_tokens

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers the head gives for a vector."""

    @property
    def classes(self) -> int:
        """How many labels a target is one of; 0 for numbers."""
        return 0 if self.numeric else len(getattr(self, "labels", ()))

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Return the example of each input: its rows of tokens."""
        return [[row] for row in encoder.encode(as_texts(inputs), max_length)]

    def taught(self, encoder: Encoder, inputs: Sequence[Any], targets: Targets, max_length: int) -> list[Example]:
        """Return the example of each input that has a target: with the target in its tokens, where the base writes."""
        return self.examples(encoder, inputs, max_length)

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the initial head."""
        import torch

        from adaptree.core.bottleneck import truncated_normal

        inner: dict[str, Tensor] = {}
        if getattr(self, "hidden", ""):
            inner = {f"{DENSE}.weight": truncated_normal((d, d), 0.02, generator), f"{DENSE}.bias": torch.zeros(d)}
        outer = {
            "head.weight": truncated_normal((self.width, d), 0.02, generator),
            "head.bias": torch.zeros(self.width),
        }
        return inner | outer

    def shapes(self, d: int) -> Shapes:
        """Return the shapes of a trained head: those of the initial one."""
        if type(self).init is not Kind.init:
            return shapes_of(lambda generator: self.init(d, generator))
        import torch

        sizes: dict[str, tuple[int, ...]] = {"head.weight": (self.width, d), "head.bias": (self.width,)}
        if getattr(self, "hidden", ""):
            sizes |= {f"{DENSE}.weight": (d, d), f"{DENSE}.bias": (d,)}
        return {name: (shape, torch.float32) for name, shape in sizes.items()}

    def problem(self) -> str:
        """Return what is wrong with the values that a stored task gave to its fields, in words; '' if they can be."""
        return ""

    def pretrained_head(self, folder: Path, width: int) -> dict[str, Tensor]:
        """Return the head that a base in a folder was pretrained with for this kind; {} where it was not."""
        return {}

    def resampled(self, examples: Sequence[Example], seed: int | None) -> Sequence[Example]:
        """Return the examples of one step, sampled with `seed`; without a seed, the fixed sample that is scored."""
        return examples

    def for_training(self, example: Example, target: Any) -> Example:
        """Return the rows of an input that one training step computes: all, or of a long input MOST_ROWS at most."""
        return example if len(example) <= MOST_ROWS else example[:: -(-len(example) // MOST_ROWS)]

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, words: Tensor
    ) -> Out:
        """Return the head's output by row for last hidden states (B, T, d); `words` are output embeddings."""
        if not self.reads_tokens:
            return linear(self._inner(pool(hidden, mask, pooling), v), v).float()
        B, T, d = hidden.shape
        out = linear(hidden.reshape(B * T, d), v).float().view(B, T, -1)
        return [out[i, : len(row.ids)] for i, row in enumerate(rows)]

    def _inner(self, x: Tensor, v: Params) -> Tensor:
        """Return what the head's last map reads: the pooled vector, or a hidden layer of it where the head has one."""
        if not (name := getattr(self, "hidden", "")):
            return x
        from adaptree.core.bottleneck import ACTIVATIONS

        return ACTIVATIONS[name](linear(x, v, DENSE))

    @abstractmethod
    def loss(self, out: Out, examples: Sequence[Example], targets: Targets, weights: Tensor | None = None) -> Tensor:
        """Return the loss of each input, (n,)."""

    def class_weights(self, targets: Targets) -> Tensor:
        """Return weights for `loss` with which rare labels count as much as frequent ones."""
        raise UsageError(f"class weights are not for kind {self.name}.", hint="Leave --class-weights out.")

    def alike(self, targets: Targets) -> Tensor:
        """Return how alike the targets of each two examples are, (n, n), from 0 to 1."""
        raise UsageError(
            f"contrastive training compares whole texts by their labels, and kind {self.name} has none such.",
            hint="--objective cross-entropy",
        )

    def bag_targets(self, targets: Targets) -> tuple[list[Any], int]:
        """Return targets as a linear model outside the base learns them, and how many classes; 0 for numbers."""
        raise UsageError(
            f"kind {self.name} cannot be learned outside the base.", hint="Choose another method: --method houlsby"
        )

    @abstractmethod
    def decode(self, out: Out, examples: Sequence[Example]) -> Answers:
        """Return what is scored against the targets."""

    @abstractmethod
    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Any]:
        """Return what a user sees: for each input an object with `to_dict` (JSON) and `columns` (of a table)."""

    def respond(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Any]:
        """Return the predictions; of an input without text one without an answer, as there was nothing to read."""
        found = self.predictions(out, examples, inputs, min_score)
        nothing = self.no_prediction()
        if nothing is None:
            return found
        return [nothing if self.is_blank(given) else each for given, each in zip(inputs, found, strict=True)]

    def no_prediction(self) -> Any | None:
        """Return the prediction of an input without text; None where `predictions` says itself that there is none."""
        return None

    def is_blank(self, given: Any) -> bool:
        """Return whether an input has no text to predict from."""
        parts = [given] if isinstance(given, str) else given
        return isinstance(parts, list | tuple) and all(is_empty(str(part)) for part in parts)

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        """Return how many decoded predictions differ between exact and approximate (int8) outputs."""
        both = zip(self.decode(exact, examples), self.decode(out, examples), strict=True)
        return sum(bool(np.any(a != b)) for a, b in both)

    def doubts(self, out: Out, examples: Sequence[Example]) -> np.ndarray[Any, Any] | None:
        """Return how unsure the task is of each input, (n,), from 0 to 1; None where its answers have no probability.

        Raise UsageError for a kind whose rows nobody chooses to label.
        """
        raise UsageError(f"improve chooses texts to label, and kind {self.name} is not labelled text by text.")

    # How it is scored.

    @classmethod
    def check_metric(cls, name: str, labels: Sequence[Any]) -> str:
        """Return a metric's name; raise UsageError, with near names, when the kind or these labels have none such."""
        if name not in cls.metrics:
            raise UsageError(
                f"no metric '{name}' for {cls.name}; there are {', '.join(cls.metrics)}.",
                hint=near(name, cls.metrics) or f"--metric {cls.metrics[0]}",
            )
        return name

    @abstractmethod
    def score(self, targets: Targets, answers: Answers) -> dict[str, float]:
        """Return every metric."""

    def intervals(self, targets: Targets, answers: Answers) -> Mapping[str, tuple[float, float]]:
        """Return the 95 % interval of the metrics (`bootstrap`)."""
        return {}

    # Inputs of a user.

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        """Return a user's inputs in the form that `examples` takes; raise UsageError for others."""
        texts = as_texts([inputs] if isinstance(inputs, str) else inputs)
        pair = bool(record.columns.get("pair"))
        if any(isinstance(text, tuple) != pair for text in texts):
            takes, such = ("two texts", '("a text", "the text beside it")') if pair else ("one text", '"a text"')
            raise UsageError(f"the task '{record.name}' takes {takes} for each answer.", hint=f"Give {such}.")
        return texts

    def line(self, line: str, record: Record) -> Any:
        """Return one line that a user typed as an input; its parts are separated by tabs."""
        if not record.columns.get("pair"):
            return line
        first, tab, second = line.partition("\t")
        if not tab:
            raise UsageError(f"the task '{record.name}' takes two texts: separate them with a tab.")
        return first, second

    # How a prediction is explained.

    measure: ClassVar[str] = "log-odds"
    """What `evidence` measures: log-odds, or the value of a number."""

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        """Return what is to be explained of the prediction for one input: by default what is predicted.

        `target` names a label, a number or a choice to explain instead; raise UsageError, with near names, if there
        is none such, or if a prediction of this kind cannot be explained.
        """
        raise UsageError(f"a task of kind {self.name} cannot be explained word by word.")

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        """Return how strongly the head's output for one input speaks for an aim, with gradients: a number."""
        raise NotImplementedError

    def layout(self, encoder: Encoder, given: Any, example: Example, max_length: int) -> Layout:
        """Return the texts of an input, and what each token of its example stands for."""
        texts = [given] if isinstance(given, str) else list(given)
        return Layout(texts, [encoder.places(given, max_length)])

    # What a card shows.

    @classmethod
    @abstractmethod
    def describe(cls, record: Record) -> str:
        """Return what a task of this kind does, in one sentence."""

    @classmethod
    def usage(cls, record: Record) -> tuple[str, str]:
        """Return an example input in Python, and the words after `adaptree predict TASK`."""
        if record.columns.get("pair"):
            return '("a text", "the text beside it")', "--file pairs.csv"
        return '"a text"', '"a text"'

    @classmethod
    def show(cls, given: Any, target: Any) -> tuple[Sequence[str], str]:
        """Return an example's texts, and its target in words."""
        return [given] if isinstance(given, str) else list(given), show_target(target)

    @classmethod
    def score_note(cls, record: Record) -> str:
        """Return a sentence that a reader of the scores needs, or ''."""
        return ""

    def findings(self, on: Evaluated) -> dict[str, Any]:
        """Return what a card shows of evaluated inputs beside their scores, such as mistakes, as JSON values."""
        return {}

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        """Return the sections of a card that show `findings`."""
        return []

    # What can be averaged.

    @classmethod
    def outputs(cls, record: Record) -> Any:
        """Return what a task's outputs stand for; tasks can be averaged where it is the same."""
        return record.labels

    @classmethod
    def scale(cls, record: Record) -> tuple[list[float], list[float]] | None:
        """Return the mean and the unit of each output: the heads of two tasks are averaged in the first one's units.

        The unit is the standard deviation of standardised targets, and 1 / temperature where outputs are calibrated.
        """
        return None


def _own(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return only those values that are fields of a dataclass, with the lists of JSON as tuples."""
    own = {field.name: values[field.name] for field in fields(cls) if field.name in values}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}


def pool(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """Return one vector per text: (B, T, d), (B, T) -> (B, d)."""
    import torch

    if how == "mean":
        m = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * m).sum(1) / m.sum(1)
    at = mask.sum(1) - 1 if how == "last" else torch.zeros(len(mask), dtype=torch.long, device=mask.device)
    return hidden[torch.arange(len(mask), device=mask.device), at]


def linear(x: Tensor, v: Params, name: str = "head") -> Tensor:
    """(N, d) -> (N, width), row by row: the bits of one product over all rows depend on how many there are."""
    import torch

    w, b = v[f"{name}.weight"], v[f"{name}.bias"]
    N = len(x)
    return torch.baddbmm(b.expand(N, 1, -1), x.unsqueeze(1), w.t().expand(N, -1, -1)).squeeze(1)


def hidden_problem(activation: str) -> str:
    """Return what is wrong with the activation of a head's hidden layer, in words; '' if nothing is."""
    from adaptree.core.bottleneck import ACTIVATIONS

    return "" if activation in ("", *ACTIVATIONS) else f"no activation {activation!r:.40} is known"


def log_odds(logits: Tensor, at: int) -> Tensor:
    """Return the log-odds of one of several classes: log p - log(1 - p), from logits (classes,)."""
    import torch

    others = torch.cat([logits[:at], logits[at + 1 :]])
    return logits[at] - others.logsumexp(0) if len(others) else logits[at]


def find_label(target: str, labels: Sequence[Any], what: str = "label") -> int:
    """Return the place of a label that a user named; raise UsageError, with near names, if there is none such."""
    names = [str(label) for label in labels]
    if target not in names:
        hint = near(target, names) or f"There are: {', '.join(names[:20])}."
        raise UsageError(f"the task has no {what} '{target}'.", hint=hint)
    return names.index(target)


def as_tensor(targets: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Return targets on the device of a tensor."""
    import torch

    return torch.from_numpy(targets).to(like.device)


def check_pooling(how: str) -> str:
    """Return the pooling's name; raise UsageError, with near names, if there is none such."""
    if how not in POOLINGS:
        raise UsageError(
            f"no pooling '{how}'.", hint=near(how, POOLINGS) or f"There are: --pooling {', '.join(POOLINGS)}."
        )
    return how


def as_texts(inputs: Sequence[Any]) -> list[str | tuple[str, str]]:
    """Return texts, or pairs of texts, as the encoder takes them."""
    out: list[str | tuple[str, str]] = []
    for item in inputs:
        if isinstance(item, str):
            out.append(item)
        elif isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item):
            out.append((item[0], item[1]))
        else:
            raise UsageError(f"an input must be a text or a pair of texts, not {item!r:.60}.")
    return out


def show_target(target: Any) -> str:
    """Return a label, a number or a list of such in words."""
    if isinstance(target, list):
        return ", ".join(map(show_target, target)) or "none"
    return f"{target:.6g}" if isinstance(target, float) else str(target)


def texts_of(record: Record) -> str:
    """Return what a task takes, in words."""
    return "a pair of texts" if record.columns.get("pair") else "a text"


def by_example(out: Out, examples: Sequence[Example]) -> list[Any]:
    """Return the head's output by input: the rows of each example."""
    ends = np.cumsum([len(example) for example in examples]).tolist()
    return [out[end - len(example) : end] for example, end in zip(examples, ends, strict=True)]
