"""A base with a task or a composition of tasks on it, which predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptree import compose, kinds
from adaptree.compose import Composition, Parts
from adaptree.compose.blocks import Dropped
from adaptree.core.int8 import quantise
from adaptree.data.decoding import Decoding
from adaptree.data.encode import Encoding
from adaptree.errors import CompositionError, UsageError
from adaptree.kinds import Example, Out
from adaptree.kinds.generate import TextPrediction
from adaptree.kinds.kind import as_texts
from adaptree.kinds.reading import Reader, reader_for
from adaptree.methods import Params, Plan
from adaptree.models.forward import infer, vectors
from adaptree.models.gates import gated
from adaptree.models.generation import OnText, choose, write
from adaptree.models.hooks import HookedModel

if TYPE_CHECKING:
    from adaptree.data.read import Source
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

INT8_TEXTS, INT8_CHANGED = 256, 0.02
"""How many inputs are computed in fp32 too, and which share of the predictions int8 may change."""


class Bound:
    """A base and a composition of tasks on it, of which the last one predicts."""

    def __init__(self, base: Base, composition: Composition, *, int8: bool = False) -> None:
        if composition.task is None:
            raise CompositionError(
                f"{composition.expression!r} is the bare base: it has no task to predict with.",
                hint="Its vectors are base.features(texts).",
            )
        self.base = base
        self.composition = composition
        self.task = composition.task
        self._exact = self._check_int8() if int8 else None
        self._compared = self._changed = 0
        self.kind = kinds.for_record(self.task.record, base.encoder)
        self.truncated = 0
        """How many texts so far were longer than the task takes, and were truncated."""
        self.decoding: dict[str, Any] = {}
        """How a task that writes texts chooses them, where nothing else is said (`Decoding`)."""
        self.blank = 0
        """How many inputs so far had no text, and have no prediction."""
        self.unfinished = 0
        """How many texts so far were cut off at the most tokens that were allowed."""
        self.method = composition.parts[-1][0]
        self._v = composition.v
        if isinstance(self.method, Dropped):
            self._v = self.method.left(base.hooked.sites, self._v)
        self._plan, self._copy = self._place(composition.parts)

    def _place(self, parts: Parts) -> tuple[Plan | None, HookedModel | None]:
        """Return the plan to run on the base itself; or, if weights are replaced, a copy of the base that has them."""
        hooked = self.base.hooked
        plan, weights = compose.together(hooked.sites, hooked.frozen, parts)
        if not weights and self._exact is None:
            return hooked.hook(plan), None
        copy = hooked.copy(weights)
        if self._exact is not None and not quantise(copy.backbone):
            raise UsageError(
                f"{hooked.sites.architecture} has no linear maps that int8 is for.", hint="Leave out --int8."
            )
        copy.bind(plan)
        return None, copy

    @property
    def on_base(self) -> tuple[Plan, Params] | None:
        """The plan and the weights, if it runs on the base's own weights; None if it replaces them or needs no base."""
        return None if self._plan is None or self.method.standalone else (self._plan, self._v)

    @property
    def runs_on(self) -> tuple[HookedModel, Plan]:
        """The model that computes it, which is a copy of the base if it replaces weights, and the plan to run there."""
        return (self.base.hooked, self._plan or {}) if self._copy is None else (self._copy, self._copy.plan)

    @property
    def why_apart(self) -> str:
        """Why it cannot share a forward pass of the base with other tasks, whatever their methods; '' if it may."""
        if self.int8 or self.method.standalone:
            return f"{self.spelling} does not run on the base's own weights"
        return ""

    @property
    def weights(self) -> Params:
        """The weights of the task that predicts."""
        return self._v

    @property
    def head(self) -> Params:
        """The weights of its head."""
        return {name: tensor for name, tensor in self._v.items() if name.startswith("head.")}

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns that the task was trained on."""
        return self.task.record.columns

    @property
    def spelling(self) -> str:
        """Its methods as text, from the lowest to the topmost."""
        return ", ".join(str(method) for method, _ in self.composition.parts)

    @property
    def int8(self) -> bool:
        return self._exact is not None

    @property
    def int8_compared(self) -> tuple[int, int]:
        """How many predictions in int8 were compared with those in fp32, and how many of them differ."""
        return self._compared, int(self._changed)

    def _check_int8(self) -> Bound:
        """Return the same task in fp32, with which the first predictions in int8 are compared."""
        if self.base.device != "cpu":
            raise UsageError("int8 is for processors.", hint="Leave out --int8, or compute on one: --device cpu")
        exact = Bound(self.base, self.composition)
        if exact.method.standalone:
            raise UsageError(f"{exact.method.name} does not run in the base.", hint="Leave out --int8.")
        if exact.kind.generates:
            raise UsageError("int8 changes too many of the tokens that a task writes.", hint="Leave out --int8.")
        return exact

    def _compare(self, examples: Sequence[Example], out: Out, batch_size: int) -> None:
        """Compute the first inputs in fp32 too; raise UsageError if int8 changes too many predictions."""
        if self._exact is None or self._compared >= INT8_TEXTS or not examples:
            return
        some = examples[: INT8_TEXTS - self._compared]
        exact = self._exact.compute(some, batch_size)
        self._compared += len(some)
        self._changed += self.kind.changed(exact, out[: sum(map(len, some))], some)
        if self._changed > max(1.0, INT8_CHANGED * self._compared):
            raise UsageError(
                f"int8 changes {self._changed:,} of the first {self._compared:,} predictions of "
                f"'{self.task.record.name}'.",
                hint="Leave out --int8: this task needs fp32.",
            )

    def predict(
        self, inputs: Any, *, min_score: float | None = None, batch_size: int = 64, **decoding: Any
    ) -> list[Any]:
        """Return a prediction for each input, in order: a `Prediction` for texts and pairs.

        `decoding` says how a task that writes texts chooses them (`Decoding`): max_new_tokens, temperature, beams, ….
        """
        read = self.kind.inputs(inputs, self.task.record)
        if self.kind.generates:
            if min_score is not None:
                raise UsageError("a text that is written has no score to abstain by.", hint="Leave --min-score out.")
            return self.write(read, **decoding)
        if decoding:
            raise UsageError(
                f"{next(iter(decoding))} is for tasks that write texts, and '{self.task.record.name}' does not."
            )
        examples, out = self.run(read, batch_size)
        return self.respond(out, examples, read, min_score)

    def write(self, inputs: list[Any], *, on_text: OnText | None = None, **decoding: Any) -> list[TextPrediction]:
        """Return a text for each input that the task has read; `on_text` gets that of a single one as it is written."""
        rows = [example[0] for example in self.read(inputs)]
        how = Decoding(**{**self.decoding, **decoding})
        if how.choices:
            return choose(self.base, rows, how, plan=self._plan, hooked=self._copy)
        said = write(self.base, rows, how, plan=self._plan, hooked=self._copy, on_text=on_text)
        self.unfinished += sum(not each.finished for each in said)
        return said

    def respond(self, out: Out, examples: Sequence[Example], read: list[Any], min_score: float | None) -> list[Any]:
        """Return the predictions for inputs that the task has read, and count those that have no text."""
        self.blank += sum(map(self.kind.is_blank, read))
        return self.kind.respond(out, examples, read, min_score)

    def answer(self, inputs: Any, min_score: float | None = None) -> list[Any]:
        """Predict for inputs as `line` and `reader` return them."""
        return self.predict(inputs, min_score=min_score)

    def line(self, line: str) -> Any:
        """Return a line that a user typed as an input."""
        return self.kind.line(line, self.task.record)

    def reader(self, first: Mapping[str, Any], columns: Mapping[str, str | None]) -> Reader:
        """Return a function from a file's row to an input; `first` is its first row, `columns` those to read."""
        return reader_for(self.task.record, first, columns)

    def evaluate(
        self,
        data: Source,
        *,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
        encoding: str = "utf-8",
        store: Store | None = None,
    ) -> dict[str, Any]:
        """Return its scores on labelled data with 95 % intervals, and its price: `adaptree.evaluate` as a method."""
        from adaptree.models.evaluate import evaluate

        return evaluate(self, data, text=text, text_pair=text_pair, label=label, encoding=encoding, store=store)

    def decode(self, inputs: Any, *, batch_size: int = 64) -> Any:
        """Return what is compared with the target in scoring, for each input."""
        examples, out = self.run(self.kind.inputs(inputs, self.task.record), batch_size)
        return self.kind.decode(out, examples)

    def logits(self, inputs: Any, *, batch_size: int = 64) -> Tensor:
        """Return the head's output: (n, labels) where it reads one vector for each input, else all numbers end to end.

        The bits do not depend on what else is in the batch.
        """
        out = self.run(self.kind.inputs(inputs, self.task.record), batch_size)[1]
        return out if isinstance(out, Tensor) else torch.cat([part.flatten() for part in (*out, torch.zeros(0))])

    def features(self, inputs: Any, *, batch_size: int = 64) -> Tensor:
        """Return the pooled vector of each text or pair under this task, (n, width)."""
        if self.method.standalone:
            raise UsageError(f"{self.method.name} has no vectors in the base.")
        texts = as_texts([inputs] if isinstance(inputs, str) else inputs)
        rows = self.base.encoder.encode(texts, self.task.record.max_length) if texts else []
        pooling = self.task.record.pooling or self.base.pooling
        with nullcontext() if self._plan is None else self.base.hooked.running(self._plan):
            return vectors(self.base, rows, pooling, batch_size, self._copy)

    def run(self, inputs: list[Any], batch_size: int = 64, targets: Any = None) -> tuple[list[Example], Out]:
        """Return the inputs as encoded examples, and the head's output for each of their rows.

        `targets` are what a task that writes texts is to write.
        """
        if self.method.standalone:
            return [], self.method.logits(self._v, inputs) if inputs else torch.empty(0, self.kind.width)
        examples = self.read(inputs, targets)
        out = self.compute(examples, batch_size)
        self._compare(examples, out, batch_size)
        return examples, out

    @property
    def exact(self) -> Bound:
        """The same task in fp32."""
        return self._exact or self

    def gated(self, rows: Sequence[Encoding], gates: Tensor, hidden_id: int) -> Out:
        """Return the head's output for rows of one canonical length, with gradients to `gates`, (rows, tokens).

        A token's embedding is its own where its gate is 1, that of the token `hidden_id` where it is 0, and between the
        two on a straight line.
        """
        hooked = self._copy or self.base.hooked
        plan = gated(hooked, hooked.plan if self._plan is None else self._plan, gates, hidden_id)
        with hooked.running(plan):
            hidden, mask = self.base.hidden(rows, self._copy)
            return self.kind.run(hidden, mask, rows, self._v, self.task.record.pooling, self.base.words(self._copy))

    def read(self, inputs: list[Any], targets: Any = None) -> list[Example]:
        """Return inputs as encoded examples."""
        encoder, most = self.base.encoder, self.task.record.max_length
        examples: list[Example] = []
        if inputs and targets is not None and self.kind.generates:
            examples = self.kind.taught(encoder, inputs, targets, most)
        elif inputs:
            examples = self.kind.examples(encoder, inputs, most)
        self.truncated += sum(any(row.truncated for row in example) for example in examples)
        return list(self.kind.resampled(examples, None))

    def compute(self, examples: Sequence[Example], batch_size: int = 64) -> Out:
        """Return the head's output for each row of some examples."""
        pooling = self.task.record.pooling
        return infer(self.base, examples, self.kind, self._v, self._plan, pooling, batch_size, self._copy)

    def __repr__(self) -> str:
        return f"Bound({self.task!r} on {self.base!r})"

    def _repr_html_(self) -> str:
        """Return the task's card as HTML, which a notebook shows."""
        return self.task._repr_html_()
