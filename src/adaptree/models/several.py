"""Several answers from one base: parallel(a, b) asks every part about each input, rows(a, b) the one that it names.

Rows of all parts go through the base together (`passes`). Parts that put weights of their own in the place of the
base's, or that leave it alone, run by themselves, and so do all parts on a base that the probe finds unfit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from adaptree.compose import Expression, parse
from adaptree.data.batch import group
from adaptree.data.encode import Encoding
from adaptree.errors import AdaptreeError, CompositionError, DataError, UsageError, near
from adaptree.kinds import Example, Kind, Out
from adaptree.kinds.reading import Reader, reader_for
from adaptree.methods import Params, Plan
from adaptree.models.passes import Ground, NotShareable, Passes, key_of
from adaptree.tasks.task import Task

COLUMN = "task"
"""The column of a file that says whose answer a row wants."""


class Part(Protocol):
    """One that answers by itself: a base with a composition on it."""

    @property
    def task(self) -> Task: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def truncated(self) -> int: ...
    @property
    def spelled(self) -> str: ...
    @property
    def guest(self) -> tuple[Plan, Params] | None: ...

    def read(self, inputs: list[Any]) -> list[Example]: ...
    def run(self, inputs: list[Any], batch_size: int = 64) -> tuple[list[Example], Out]: ...


class Several:
    """A base with several compositions on it, by their texts, each of which answers."""

    def __init__(self, expression: Expression, base: Ground, parts: Mapping[str, Part]) -> None:
        if len(parts) < len(expression.parts):
            raise CompositionError(f"{expression!r} names a part twice.", hint="Name each once.")
        self.expression = expression
        self.base = base
        self.parts = dict(parts)
        self.apart: dict[str, str] = {}
        """Those that have a pass of their own, and why."""
        self._guests = {name: guest for name, part in self.parts.items() if (guest := part.guest) is not None}
        self.apart |= {
            name: f"{part.spelled} does not run on the base's own weights"
            for name, part in self.parts.items()
            if name not in self._guests
        }
        self._passes = Passes(base, {name: plan for name, (plan, _) in self._guests.items()})
        if len(self._guests) == 1:
            self._part_company("there is no other to share a pass with")
        elif self._guests:
            self._try()

    def _try(self) -> None:
        """Probe one part of each spelling and place, and at least two: a task's numbers make no difference."""
        first: dict[Any, str] = {}
        for name, (plan, _) in self._guests.items():
            first.setdefault((self.parts[name].spelled, frozenset(plan)), name)
        names = list(dict.fromkeys([*first.values(), *list(self._guests)[:2]]))
        try:
            self._passes.probe(names)
        except NotShareable as reason:
            self._part_company(str(reason))

    def _part_company(self, why: str) -> None:
        self.apart |= dict.fromkeys(self._guests, why)
        self._guests = {}

    def outputs(
        self, asked: Mapping[str, Sequence[Any]], batch_size: int = 64
    ) -> dict[str, tuple[list[Any], list[Example], Out]]:
        """Return, for each part that is asked, its inputs, their examples and its head's output."""
        given = {
            name: self.part(name).kind.inputs(inputs, self.parts[name].task.record) for name, inputs in asked.items()
        }
        guests = self._guests
        examples = {name: self.parts[name].read(given[name]) for name in given if name in guests}
        try:
            found = self._together(examples, {name: v for name, (_, v) in guests.items()}, batch_size)
        except NotShareable as reason:  # what the probe did not meet
            self._part_company(str(reason))
            return self.outputs(asked, batch_size)
        done = {name: (given[name], examples[name], found[name]) for name in examples}
        for name in (name for name in given if name not in done):
            done[name] = given[name], *self.parts[name].run(given[name], batch_size)
        return done

    def part(self, name: str) -> Part:
        """The part of that text; a near one is offered for another."""
        if name not in self.parts:
            hint = near(str(name), self.parts) or f"It has: {', '.join(self.parts)}."
            raise UsageError(f"'{name}' is no part of {self.expression!r}.", hint=hint)
        return self.parts[name]

    def _ask(
        self, asked: Mapping[str, Sequence[Any]], min_score: float | None, batch_size: int
    ) -> dict[str, list[Any]]:
        """The answers of each part to what it is asked."""
        done = self.outputs(asked, batch_size)
        return {
            name: self.parts[name].kind.predictions(out, examples, inputs, min_score)
            for name, (inputs, examples, out) in done.items()
        }

    def _together(
        self, examples: Mapping[str, Sequence[Example]], heads: Mapping[str, Params], batch_size: int
    ) -> dict[str, Out]:
        """What the heads give for each row of each part, in passes that they share."""
        rows = [(name, row) for name, of in examples.items() for example in of for row in example]
        # Equal rows of several parts lie beside each other, so that a batch holds all of them.
        seen: dict[bytes, int] = {}
        order = sorted(range(len(rows)), key=[seen.setdefault(key_of(row), len(seen)) for _, row in rows].__getitem__)
        found: dict[int, Tensor] = {}
        for batch in group([len(rows[i][1].ids) for i in order], batch_size):
            at = sorted(order[i] for i in batch)  # the rows are listed part by part
            lanes = [(name, [rows[i][1] for i in of]) for name, of in _runs(at, lambda i: rows[i][0])]
            hidden, mask = self._passes.states(lanes)
            start = 0
            for name, mine in lanes:
                part, here = self.parts[name], slice(start, start + len(mine))
                with torch.inference_mode():
                    v, pooling = heads[name], part.task.record.pooling
                    out = part.kind.run(hidden[here], mask[here], mine, v, pooling, self.base.embeddings)
                found |= {at[start + i]: out[i].cpu() for i in range(len(mine))}
                start += len(mine)
        return {name: self._put_together(name, rows, found) for name in examples}

    def _put_together(self, name: str, rows: Sequence[tuple[str, Encoding]], found: Mapping[int, Tensor]) -> Out:
        kind = self.parts[name].kind
        mine = [found[i] for i, (of, _) in enumerate(rows) if of == name]
        if kind.reads_tokens:
            return mine
        return torch.stack(mine) if mine else torch.empty(0, kind.width)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class ParallelTasks(Several):
    """parallel(a, b): each input is answered by every part."""

    def predict(self, inputs: Any, *, min_score: float | None = None, batch_size: int = 64) -> list[Told]:
        """For each input, in order, a dict with the answer of each part."""
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        return self.answer([dict.fromkeys(self.parts, each) for each in given], min_score, batch_size)

    def answer(
        self, asked: Sequence[Mapping[str, Any]], min_score: float | None = None, batch_size: int = 64
    ) -> list[Told]:
        """The same where each part is asked in its own way, as `line` and `reader` give it."""
        found = self._ask({name: [each[name] for each in asked] for name in self.parts}, min_score, batch_size)
        return [Told({name: found[name][i] for name in self.parts}) for i in range(len(asked))]

    def line(self, line: str) -> dict[str, Any]:
        return {name: part.kind.line(line, part.task.record) for name, part in self.parts.items()}

    def reader(self, first: Mapping[str, Any], asked: Mapping[str, str | None]) -> Reader:
        """How the rows of a file become what is asked, each part reading its own columns."""
        readers = {name: reader_for(part.task.record, first, asked) for name, part in self.parts.items()}
        return lambda row, number, file: {name: read(row, number, file) for name, read in readers.items()}


class RowTasks(Several):
    """rows(a, b): each input is answered by the part that it names."""

    def predict(
        self, inputs: Any, *, tasks: Sequence[str] | str, min_score: float | None = None, batch_size: int = 64
    ) -> list[Any]:
        """The answer to each input of the part that stands at its place in `tasks`, in order."""
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        names = [tasks] * len(given) if isinstance(tasks, str) else list(tasks)
        if len(names) != len(given):
            raise UsageError(f"{len(given):,} inputs and {len(names):,} tasks were given.", hint="Name one for each.")
        return [said.answer for said in self.answer(list(zip(names, given, strict=True)), min_score, batch_size)]

    def answer(
        self, asked: Sequence[tuple[str, Any]], min_score: float | None = None, batch_size: int = 64
    ) -> list[Named]:
        """The same with the part's name before each input, as `line` and `reader` give it."""
        at: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(asked):
            self.part(called := self._called(name))
            at.setdefault(called, []).append(i)
        found = self._ask({name: [asked[i][1] for i in of] for name, of in at.items()}, min_score, batch_size)
        named = {i: Named(name, said) for name, of in at.items() for i, said in zip(of, found[name], strict=True)}
        return [named[i] for i in range(len(asked))]

    def line(self, line: str) -> tuple[str, Any]:
        name, tab, rest = line.partition("\t")
        if not tab:
            raise UsageError(
                f"{self.expression!r} wants a task for each text: write its name, a tab, and the text.",
                hint=f"Names: {', '.join(self.parts)}.",
            )
        part = self.part(called := self._called(name))
        return called, part.kind.line(rest, part.task.record)

    def _called(self, name: Any) -> str:
        """What a part is called that is spelled in another way: stack(a,b) is stack(a, b)."""
        if name in self.parts:
            return str(name)
        try:
            return repr(parse(str(name)))
        except AdaptreeError:
            return str(name).strip()

    def reader(self, first: Mapping[str, Any], asked: Mapping[str, str | None]) -> Reader:
        """How the rows of a file become what is asked, by their column `task`."""
        if COLUMN not in first:
            raise DataError(
                f"{self.expression!r} needs a column '{COLUMN}' that says whose answer each row wants; "
                f"the columns are {', '.join(repr(column) for column in list(first)[:20])}.",
                hint=f"Its values: {', '.join(self.parts)}.",
            )
        readers: dict[str, Reader] = {}

        def read(row: Mapping[str, Any], number: int, file: str) -> tuple[str, Any]:
            name = self._called(row.get(COLUMN) or "")
            if name not in self.parts:
                hint = near(name, self.parts) or f"Its values: {', '.join(self.parts)}."
                raise DataError(
                    f"row {number} of '{file}' asks for '{name}', no part of {self.expression!r}.", hint=hint
                )
            if name not in readers:
                readers[name] = reader_for(self.parts[name].task.record, row, asked)
            return name, readers[name](row, number, file)

        return read


class Told(dict[str, Any]):
    """The answers of several parts to one input, by their texts."""

    def to_dict(self) -> dict[str, Any]:
        return {name: said.to_dict() for name, said in self.items()}

    def columns(self) -> dict[str, Any]:
        return {f"{name}.{key}": value for name, said in self.items() for key, value in said.columns().items()}


@dataclass(frozen=True)
class Named:
    """An answer, and whose it is."""

    name: str
    answer: Any

    def to_dict(self) -> dict[str, Any]:
        return {COLUMN: self.name, **self.answer.to_dict()}

    def columns(self) -> dict[str, Any]:
        """The same columns for all kinds of task: what is more than a prediction and its score is put into one."""
        said = dict(self.answer.columns())
        score = said.pop("score", None)
        return {"prediction": said["prediction"] if list(said) == ["prediction"] else said, "score": score}


def _runs(at: Sequence[int], key: Callable[[int], str]) -> Iterator[tuple[str, list[int]]]:
    return ((name, list(of)) for name, of in groupby(at, key))
