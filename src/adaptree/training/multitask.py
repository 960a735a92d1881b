"""Joint training: one set of adapters for several tasks, with a head for each (`adaptree train --joint`).

To the training loop several tasks are one: `MultiTaskKind` hands each example to the kind of its own task, and
`MultiTaskDataset` puts the tasks' rows one after the other. Afterwards each task is one like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaptree.data.encode import Encoder, Encoding
from adaptree.kinds import metrics
from adaptree.kinds.kind import Example, Kind, Out, Targets
from adaptree.methods import Params
from adaptree.training.encoded import EncodedDataset
from adaptree.training.result import Fit

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
MEAN = "mean"
"""The metric of an epoch: the mean of the tasks' own metrics."""


class OfTask(NamedTuple):
    """The number of the task that something belongs to, and the thing itself."""

    task: int
    value: Any


class _Group(NamedTuple):
    """The examples of one task in a batch: their places, those of their encodings, and the examples themselves."""

    task: int
    places: Array
    rows: list[int]
    examples: list[Example]


@dataclass(frozen=True)
class MultiTaskKind(Kind):
    """Several kinds at once: each example is computed, learned from and scored by the kind of its own task."""

    name: ClassVar[str] = "joint"
    linear_head: ClassVar[bool] = False  # it is several
    reads_tokens: ClassVar[bool] = True  # the output of each row by itself, as the heads differ in width
    kinds: tuple[Kind, ...]
    names: tuple[str, ...]
    judged: tuple[str, ...]
    """The metric of each task that counts towards the mean."""

    @property
    def width(self) -> int:
        return sum(kind.width for kind in self.kinds)

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Return the examples of inputs that come as (task, input)."""
        return [_marked(i, *self.kinds[i].examples(encoder, [value], max_length)) for i, value in inputs]

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        heads = [kind.init(d, generator) for kind in self.kinds]
        return {f"head.{i}.{name.removeprefix('head.')}": t for i, head in enumerate(heads) for name, t in head.items()}

    def resampled(self, examples: Sequence[Example], seed: int | None) -> Sequence[Example]:
        found: list[Example] = list(examples)
        for group in _groups(examples):
            for place, example in zip(
                group.places, self.kinds[group.task].resampled(group.examples, seed), strict=True
            ):
                found[place] = _marked(group.task, example)
        return found

    def for_training(self, example: Example, target: Any) -> Example:
        task = example[0].at.task
        return _marked(task, self.kinds[task].for_training(_unmarked(example), target))

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Targets) -> MultiTaskKind:
        kinds = list(self.kinds)
        for group in _groups(examples):
            mine = _select(targets, group.places)
            kinds[group.task] = kinds[group.task].calibrated(self._output(group, out), group.examples, mine)
        return replace(self, kinds=tuple(kinds))

    def state(self) -> dict[str, Any]:
        return {"kinds": [kind.state() for kind in self.kinds]}

    def with_state(self, state: Mapping[str, Any]) -> MultiTaskKind:
        kinds = zip(self.kinds, state["kinds"], strict=True)
        return replace(self, kinds=tuple(kind.with_state(chosen) for kind, chosen in kinds))

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, words: Tensor
    ) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for group in _groups([[row] for row in rows]):
            here = torch.from_numpy(group.places).to(hidden.device)
            own = [example[0] for example in group.examples]
            head = head_of(v, group.task)
            out = self.kinds[group.task].run(hidden[here], mask[here], own, head, pooling, words)
            found |= zip(group.rows, out, strict=True)
        return [found[i] for i in range(len(rows))]

    def loss(self, out: Out, examples: Sequence[Example], targets: Targets, weights: Tensor | None = None) -> Tensor:
        losses, places = [], []
        for group in _groups(examples):
            mine = _select(targets, group.places)
            losses.append(self.kinds[group.task].loss(self._output(group, out), group.examples, mine))
            places.append(group.places)
        back = torch.from_numpy(np.argsort(np.concatenate(places)))
        return torch.cat(losses)[back.to(losses[0].device)]

    def decode(self, out: Out, examples: Sequence[Example]) -> list[OfTask]:
        return self._each(examples, lambda kind, group: kind.decode(self._output(group, out), group.examples))

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[OfTask]:
        def predict(kind: Kind, group: _Group) -> list[Any]:
            mine = [inputs[i][1] for i in group.places]
            return kind.predictions(self._output(group, out), group.examples, mine, min_score)

        return self._each(examples, predict)

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        return sum(
            self.kinds[group.task].changed(self._output(group, exact), self._output(group, out), group.examples)
            for group in _groups(examples)
        )

    def score(self, targets: Targets, answers: Sequence[OfTask]) -> dict[str, float]:
        """Return each task's scores under its name, and their mean; metrics where less is better count negatively."""
        found: dict[str, float] = {}
        main = []
        for task, places in _by_task(answer.task for answer in answers):
            mine = _select([answer.value for answer in answers], places)
            scores = self.kinds[task].score(_select(targets, places), mine)
            found |= {f"{self.names[task]}.{metric}": value for metric, value in scores.items()}
            metric = self.judged[task]
            main.append(-scores[metric] if metric in metrics.LOWER_IS_BETTER else scores[metric])
        return {MEAN: float(np.mean(main)), **found}

    @classmethod
    def describe(cls, record: Record) -> str:
        return "Several tasks at once."

    def _output(self, group: _Group, out: Out) -> Out:
        """Return the head's output for a group, as the kind of its task takes it."""
        mine = [out[i] for i in group.rows]
        return mine if self.kinds[group.task].reads_tokens else torch.stack(mine)

    def _each(self, examples: Sequence[Example], call: Callable[[Kind, _Group], Iterable[Any]]) -> list[OfTask]:
        """Return what `call` gives for each example, in their order."""
        found: dict[int, OfTask] = {}
        for group in _groups(examples):
            for place, value in zip(group.places, call(self.kinds[group.task], group), strict=True):
                found[place] = OfTask(group.task, value)
        return [found[i] for i in range(len(examples))]


class MultiTaskDataset(EncodedDataset):
    """The datasets of several tasks, one after the other; an epoch's rows are sampled by temperature."""

    def __init__(self, parts: Sequence[EncodedDataset], temperature: float) -> None:
        self._parts, self._temperature = tuple(parts), temperature
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def digest(self) -> str:
        facts = repr(([part.digest for part in self._parts], float(self._temperature)))
        return hashlib.sha256(facts.encode()).hexdigest()

    def rows(self, rows: Sequence[Array]) -> Array:
        """Return some rows of each dataset as rows of all of them."""
        return np.concatenate([start + some for start, some in zip(self._starts, rows, strict=False)])

    def examples(self, rows: Array) -> list[Example]:
        found: dict[int, Example] = {}
        for task, places in self._tasks_of(rows):
            examples = self._parts[task].examples(rows[places] - self._starts[task])
            found |= {place: _marked(task, example) for place, example in zip(places.tolist(), examples, strict=True)}
        return [found[i] for i in range(len(rows))]

    def targets(self, rows: Array) -> list[Any]:
        found: dict[int, Any] = {}
        for task, places in self._tasks_of(rows):
            found |= zip(places.tolist(), self._parts[task].targets(rows[places] - self._starts[task]), strict=True)
        return [found[i] for i in range(len(rows))]

    def weights(self, rows: Array) -> Array | None:
        own = [(places, self._parts[task].weights(rows[places] - self._starts[task]))
               for task, places in self._tasks_of(rows)]  # fmt: skip
        if all(weights is None for _, weights in own):
            return None
        found = np.ones(len(rows), dtype=np.float32)
        for places, weights in own:
            found[places] = 1 if weights is None else weights
        return found

    def sampled(self, rows: Array, seed: Sequence[int]) -> Array:
        """Return as many rows, of a dataset of n rows in proportion to n^(1/T); those of a small one several times."""
        if self._temperature == 1:
            return rows
        members = [(task, rows[places]) for task, places in self._tasks_of(rows)]
        wanted = rows_per_epoch([len(mine) for _, mine in members], self._temperature)
        parts = []
        for (task, mine), count in zip(members, wanted, strict=True):
            rng = np.random.default_rng(np.random.SeedSequence(list(seed), spawn_key=(task,)))
            whole, rest = divmod(count, len(mine))
            parts += [mine] * whole + [rng.permutation(mine)[:rest]]
        return np.concatenate(parts)

    def _tasks_of(self, rows: Array) -> Iterator[tuple[int, Array]]:
        tasks = np.searchsorted(self._starts, rows, side="right") - 1
        return _by_task(tasks.tolist())

    @property
    def truncated(self) -> int:
        return sum(part.truncated for part in self._parts)


def rows_per_epoch(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return how many rows of each dataset an epoch has: all rows, shared out in proportion to n^(1/T)."""
    shares = np.asarray(sizes, dtype=np.float64) ** (1 / temperature)
    exact = sum(sizes) * shares / shares.sum()
    counts = np.floor(exact).astype(np.int64)
    missing = sum(sizes) - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1  # those that were rounded down most
    return [int(count) for count in counts]


def head_of(v: Params, task: int) -> dict[str, Tensor]:
    """Return a task's own head, under the names that its kind knows."""
    prefix = f"head.{task}."
    return {f"head.{name.removeprefix(prefix)}": t for name, t in v.items() if name.startswith(prefix)}


def fit_of(fit: Fit, task: int) -> Fit:
    """Return one task's part of a joint fit: the shared adapters, its own head, kind and scores."""
    kind = fit.kind
    assert isinstance(kind, MultiTaskKind)
    shared = {name: tensor for name, tensor in fit.v.items() if not name.startswith("head.")}
    mine, prefixes = f"{kind.names[task]}.", tuple(f"{name}." for name in kind.names)
    history = []
    for entry in fit.history:
        own = {key.removeprefix(mine): value for key, value in entry.items() if key.startswith(mine)}
        rest = {key: value for key, value in entry.items() if not key.startswith(prefixes) and key != MEAN}
        history.append({**rest, **own, "joint_mean": entry[MEAN]})
    return replace(fit, v=shared | head_of(fit.v, task), kind=kind.kinds[task], history=history, out=None)


def _by_task(tasks: Iterable[int]) -> Iterator[tuple[int, Array]]:
    """Yield each task and the places where it occurs, in order."""
    whole = np.fromiter(tasks, dtype=np.int64)
    for task in np.unique(whole).tolist():
        yield task, np.flatnonzero(whole == task)


def _groups(examples: Sequence[Example]) -> Iterator[_Group]:
    starts = np.cumsum([0] + [len(example) for example in examples])
    for task, places in _by_task(example[0].at.task for example in examples):
        rows = [k for i in places for k in range(starts[i], starts[i + 1])]
        yield _Group(task, places, rows, [_unmarked(examples[i]) for i in places])


def _marked(task: int, example: Example) -> Example:
    return [row._replace(at=OfTask(task, row.at)) for row in example]


def _unmarked(example: Example) -> Example:
    return [row._replace(at=row.at.value) for row in example]


def _select(values: Sequence[Any], places: Array) -> Any:
    """Return the targets or answers of one task, as an array if its kind gave arrays, else as a list."""
    mine = [values[i] for i in places]
    return np.stack(mine) if isinstance(mine[0], np.generic | np.ndarray) else mine
