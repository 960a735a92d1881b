"""Several tasks on one base: parallel(a, b) predicts with every part for each input, rows(a, b) with the named one.

The rows of all parts share forward passes of the base (`bank`). Parts that replace the base's weights or do not use
the base have passes of their own, and so have all parts on a base where sharing would change the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptree.compose import Expression, parse
from adaptree.data.batch import group
from adaptree.data.decoding import Decoding
from adaptree.data.encode import Encoding
from adaptree.errors import AdaptreeError, CompositionError, DataError, UsageError, near
from adaptree.kinds import Example, Out
from adaptree.kinds.reading import Reader, takes_pair
from adaptree.models import encoder_decoder
from adaptree.models.bank import Bank, Place
from adaptree.models.passes import NotShareable
from adaptree.models.restart import key_of

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound

COLUMN = "task"
"""The column of a file that names the task for each row."""


class MultiTask:
    """A base with several compositions on it, by their texts, each of which predicts."""

    def __init__(self, expression: Expression, base: Base, parts: Mapping[str, Bound]) -> None:
        if len(parts) < len(expression.parts):
            raise CompositionError(f"{expression!r} names a part twice.", hint="Name each once.")
        self.expression = expression
        self.base = base
        self.parts = dict(parts)
        self.decoding: dict[str, Any] = {}
        """How parts that write texts choose them (`Decoding`)."""
        self._bank = Bank(base)
        self._places: dict[str, Place] = {}
        """Where the weights of each part that shares passes with the others are."""
        self.apart: dict[str, str] = {}
        """The parts that have passes of their own, and why."""
        for name, part in self.parts.items():
            found = part.why_apart or self._bank.add(part.composition)
            if isinstance(found, Place):
                self._places[name] = found
            else:
                self.apart[name] = found
        if len(self._places) == 1:
            self._run_apart("there is no other to share a pass with")

    def _run_apart(self, why: str) -> None:
        """Give every part passes of its own from now on."""
        self.apart |= dict.fromkeys(self._places, why)
        self._places = {}

    def outputs(
        self, inputs: Mapping[str, Sequence[Any]], batch_size: int = 64
    ) -> dict[str, tuple[list[Any], list[Example], Out]]:
        """Return, for each part with inputs, those inputs as it reads them, their examples and its head's output."""
        read = {name: self.part(name).kind.inputs(of, self.parts[name].task.record) for name, of in inputs.items()}
        examples = {name: self.parts[name].read(read[name]) for name in read if name in self._places}
        try:
            out = self._together(examples, batch_size)
        except NotShareable as reason:  # a case that the probe did not cover
            self._run_apart(str(reason))
            return self.outputs(inputs, batch_size)
        done = {name: (read[name], examples[name], out[name]) for name in examples}
        for name in (name for name in read if name not in done):
            done[name] = read[name], *self.parts[name].run(read[name], batch_size)
        return done

    def part(self, name: str) -> Bound:
        """Return the part of that text; raise UsageError, with a similar name, if there is none."""
        if name not in self.parts:
            hint = near(str(name), self.parts) or f"It has: {', '.join(self.parts)}."
            raise UsageError(f"'{name}' is not a part of {self.expression!r}.", hint=hint)
        return self.parts[name]

    def _columns_of(self, part: Bound, columns: Mapping[str, str | None]) -> Mapping[str, str | None]:
        """Return the columns that a user named, without the second text for a part of one where others have two."""
        pairs = [takes_pair(each.task.record) for each in self.parts.values()]
        return {**columns, "pair": None} if any(pairs) and not takes_pair(part.task.record) else columns

    def _predictions(
        self, inputs: Mapping[str, Sequence[Any]], min_score: float | None, batch_size: int
    ) -> dict[str, list[Any]]:
        """Return the predictions of each part for its inputs."""
        writing = {name: of for name, of in inputs.items() if self.part(name).kind.generates}
        done = self.outputs({name: of for name, of in inputs.items() if name not in writing}, batch_size)
        found = {
            name: self.parts[name].respond(out, examples, read, min_score)
            for name, (read, examples, out) in done.items()
        }
        return found | self._written(writing) if writing else found

    def _written(self, inputs: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the texts of each part that writes; those that share passes write in the same batches."""
        from adaptree.models.generation import write

        how = Decoding(**self.decoding)
        # The encoder of two stacks has a row for each prompt and the decoder one for each beam: no plan fits both.
        apart = bool(how.choices) or (how.beams > 1 and encoder_decoder.writes(self.base.hooked))
        together = [name for name in inputs if name in self._places and not apart]
        found: dict[str, list[Any]] = {name: [] for name in inputs}
        rows, names = [], []
        for name, given in inputs.items():
            read = self.parts[name].kind.inputs(given, self.parts[name].task.record)
            if name in together:
                examples = self.parts[name].read(read)
                rows += [example[0] for example in examples]
                names += [name] * len(examples)
            else:
                found[name] = self.parts[name].write(read, **self.decoding)
        places = [self._places[name] for name in names]
        said = write(self.base, rows, how, bank=self._bank, places=places) if rows else []
        for name, text in zip(names, said, strict=True):
            found[name].append(text)
            self.parts[name].unfinished += not text.finished
        return found

    def _together(self, examples: Mapping[str, Sequence[Example]], batch_size: int) -> dict[str, Out]:
        """Return the output of each part's head for its rows, computed in passes that the parts share."""
        rows = [(name, row) for name, of in examples.items() for example in of for row in example]
        # Equal rows of several parts lie beside each other, so that a batch holds all of them.
        seen: dict[bytes, int] = {}
        order = sorted(range(len(rows)), key=[seen.setdefault(key_of(row), len(seen)) for _, row in rows].__getitem__)
        found: dict[int, Tensor] = {}
        for batch in group([len(rows[i][1].ids) for i in order], batch_size):
            at = sorted(order[i] for i in batch)  # the rows are listed part by part
            by_part = [(name, [rows[i][1] for i in of]) for name, of in groupby(at, lambda i: rows[i][0])]
            states = self._bank.states([(self._places[name], mine) for name, mine in by_part])
            done = iter(at)
            for (name, mine), (hidden, mask) in zip(by_part, states, strict=True):
                part = self.parts[name]
                with torch.inference_mode():
                    out = part.kind.run(hidden, mask, mine, part.weights, part.task.record.pooling, self.base.words())
                found |= {next(done): out[i].cpu() for i in range(len(mine))}
        return {name: self._collected(name, rows, found) for name in examples}

    def _collected(self, name: str, rows: Sequence[tuple[str, Encoding]], found: Mapping[int, Tensor]) -> Out:
        """Return the outputs of one part's rows, in their order."""
        kind = self.parts[name].kind
        mine = [found[i] for i, (of, _) in enumerate(rows) if of == name]
        if kind.reads_tokens:
            return mine
        return torch.stack(mine) if mine else torch.empty(0, kind.width)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class ParallelTasks(MultiTask):
    """parallel(a, b): every part predicts for each input."""

    def predict(self, inputs: Any, *, min_score: float | None = None, batch_size: int = 64) -> list[ParallelPrediction]:
        """Return for each input, in order, a dict with the prediction of each part."""
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        return self.answer([dict.fromkeys(self.parts, each) for each in texts], min_score, batch_size)

    def answer(
        self, inputs: Sequence[Mapping[str, Any]], min_score: float | None = None, batch_size: int = 64
    ) -> list[ParallelPrediction]:
        """Predict where each part has an input of its own, as `line` and `reader` return them."""
        by_part = {name: [each[name] for each in inputs] for name in self.parts}
        found = self._predictions(by_part, min_score, batch_size)
        return [ParallelPrediction({name: found[name][i] for name in self.parts}) for i in range(len(inputs))]

    def line(self, line: str) -> dict[str, Any]:
        """Return a line that a user typed as an input of each part."""
        return {name: part.line(line) for name, part in self.parts.items()}

    def reader(self, first: Mapping[str, Any], columns: Mapping[str, str | None]) -> Reader:
        """Return a function from a file's row to an input of each part, which reads its own columns."""
        readers = {name: part.reader(first, self._columns_of(part, columns)) for name, part in self.parts.items()}
        return lambda row, number, file: {name: read(row, number, file) for name, read in readers.items()}


class RowTasks(MultiTask):
    """rows(a, b): for each input, the part that it names predicts."""

    def predict(
        self, inputs: Any, *, tasks: Sequence[str] | str, min_score: float | None = None, batch_size: int = 64
    ) -> list[Any]:
        """Return for each input, in order, the prediction of the part at its place in `tasks`."""
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        names = [tasks] * len(texts) if isinstance(tasks, str) else list(tasks)
        if len(names) != len(texts):
            raise UsageError(f"{len(texts):,} inputs and {len(names):,} tasks were given.", hint="Name one for each.")
        found = self.answer(list(zip(names, texts, strict=True)), min_score, batch_size)
        return [each.prediction for each in found]

    def answer(
        self, inputs: Sequence[tuple[str, Any]], min_score: float | None = None, batch_size: int = 64
    ) -> list[RowPrediction]:
        """Predict where each input comes after the name of its part, as `line` and `reader` return them."""
        at: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(inputs):
            self.part(called := self._called(name))
            at.setdefault(called, []).append(i)
        by_part = {name: [inputs[i][1] for i in of] for name, of in at.items()}
        done: dict[int, RowPrediction] = {}
        for name, predictions in self._predictions(by_part, min_score, batch_size).items():
            done |= {i: RowPrediction(name, each) for i, each in zip(at[name], predictions, strict=True)}
        return [done[i] for i in range(len(inputs))]

    def line(self, line: str) -> tuple[str, Any]:
        """Return the part's name and its input from a line that a user typed: name, tab, text."""
        name, tab, rest = line.partition("\t")
        if not tab:
            raise UsageError(
                f"{self.expression!r} needs a task for each text: write its name, a tab, and the text.",
                hint=f"Names: {', '.join(self.parts)}.",
            )
        part = self.part(called := self._called(name))
        return called, part.line(rest)

    def _called(self, name: Any) -> str:
        """Return a part's text in its usual form: stack(a,b) is stack(a, b)."""
        if name in self.parts:
            return str(name)
        try:
            return repr(parse(str(name)))
        except AdaptreeError:
            return str(name).strip()

    def reader(self, first: Mapping[str, Any], columns: Mapping[str, str | None]) -> Reader:
        """Return a function from a file's row to the part that its column `task` names, and the input."""
        if COLUMN not in first:
            raise DataError(
                f"{self.expression!r} needs a column '{COLUMN}' that names a task for each row; "
                f"the columns are {', '.join(map(repr, list(first)[:20]))}.",
                hint=f"Its values: {', '.join(self.parts)}.",
            )
        readers: dict[str, Reader] = {}

        def read(row: Mapping[str, Any], number: int, file: str) -> tuple[str, Any]:
            name = self._called(row.get(COLUMN) or "")
            if name not in self.parts:
                hint = near(name, self.parts) or f"Its values: {', '.join(self.parts)}."
                raise DataError(
                    f"row {number} of '{file}' asks for '{name}', not a part of {self.expression!r}.",
                    hint=hint,
                )
            if name not in readers:
                readers[name] = self.parts[name].reader(row, self._columns_of(self.parts[name], columns))
            return name, readers[name](row, number, file)

        return read


class ParallelPrediction(dict[str, Any]):
    """The predictions of several parts for one input, by the parts' texts."""

    def to_dict(self) -> dict[str, Any]:
        return {name: each.to_dict() for name, each in self.items()}

    def columns(self) -> dict[str, Any]:
        return {f"{name}.{key}": value for name, each in self.items() for key, value in each.columns().items()}


@dataclass(frozen=True)
class RowPrediction:
    """A prediction, and the part that made it."""

    name: str
    prediction: Any

    def to_dict(self) -> dict[str, Any]:
        return {COLUMN: self.name, **self.prediction.to_dict()}

    def columns(self) -> dict[str, Any]:
        """Return the columns prediction and score for every kind: one with more columns has a dict as prediction."""
        columns = dict(self.prediction.columns())
        score = columns.pop("score", None)
        return {"prediction": columns["prediction"] if list(columns) == ["prediction"] else columns, "score": score}
