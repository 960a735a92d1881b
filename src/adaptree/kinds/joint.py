"""Several tasks at once over one set of adapters, with a head each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

import numpy as np

from adaptree.data.dataset import Dataset
from adaptree.data.encode import Encoder, Encoding
from adaptree.kinds import metrics
from adaptree.kinds.encoded import Encoded
from adaptree.kinds.kind import Example, Kind, Out, Targets
from adaptree.methods import Params

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
MEAN = "mean"
"""What an epoch is judged by: the mean of what its tasks are judged by."""


class Of(NamedTuple):
    """Which task a row or an answer is of, and what it was without that."""

    task: int
    what: Any


class _Share(NamedTuple):
    """What is of one task: its number, its inputs' and its rows' places, and its examples as its kind made them."""

    task: int
    at: Array
    rows: list[int]
    examples: list[Example]


@dataclass(frozen=True)
class Joint(Kind):
    """Each input is computed, learned from and scored by the kind of its own task."""

    name: ClassVar[str] = "joint"
    reads_tokens: ClassVar[bool] = True  # each row's output by itself, as heads differ in width
    kinds: tuple[Kind, ...]
    names: tuple[str, ...]
    judged: tuple[str, ...]
    """The metric of each task that counts."""

    def of(self, task: int) -> Kind:
        """Return a task's own kind."""
        return self.kinds[task]

    @property
    def width(self) -> int:
        return sum(kind.width for kind in self.kinds)

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Return examples of inputs (task, input), each marked with its task."""
        return [_marked(i, *self.kinds[i].examples(encoder, [given], max_length)) for i, given in inputs]

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        heads = [kind.init(d, generator) for kind in self.kinds]
        return {f"head.{i}.{name.removeprefix('head.')}": t for i, head in enumerate(heads) for name, t in head.items()}

    def resampled(self, examples: Sequence[Example], seed: int | None) -> Sequence[Example]:
        found: list[Example] = list(examples)
        for share in _shares(examples):
            for place, example in zip(share.at, self.of(share.task).resampled(share.examples, seed), strict=True):
                found[place] = _marked(share.task, example)
        return found

    def for_training(self, example: Example, target: Any) -> Example:
        task = example[0].at.task
        return _marked(task, self.of(task).for_training(_plain(example), target))

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Targets) -> Self:
        kinds = list(self.kinds)
        for share in _shares(examples):
            mine = _picked(targets, share.at)
            kinds[share.task] = kinds[share.task].calibrated(self._out(share, out), share.examples, mine)
        return replace(self, kinds=tuple(kinds))

    def state(self) -> dict[str, Any]:
        return {"kinds": [kind.state() for kind in self.kinds]}

    def with_state(self, state: Mapping[str, Any]) -> Self:
        pairs = zip(self.kinds, state["kinds"], strict=True)
        return replace(self, kinds=tuple(kind.with_state(own) for kind, own in pairs))

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, embeddings: Tensor
    ) -> list[Tensor]:
        import torch

        found: dict[int, Tensor] = {}
        for share in _shares([[row] for row in rows]):
            here = torch.from_numpy(share.at).to(hidden.device)
            own = [example[0] for example in share.examples]
            out = self.kinds[share.task].run(hidden[here], mask[here], own, head_of(v, share.task), pooling, embeddings)
            found |= zip(share.rows, out, strict=True)
        return [found[i] for i in range(len(rows))]

    def loss(self, out: Out, examples: Sequence[Example], targets: Targets, weights: Tensor | None = None) -> Tensor:
        import torch

        parts, places = [], []
        for share in _shares(examples):
            mine = _picked(targets, share.at)
            parts.append(self.of(share.task).loss(self._out(share, out), share.examples, mine))
            places.append(share.at)
        back = torch.from_numpy(np.argsort(np.concatenate(places)))
        return torch.cat(parts)[back.to(parts[0].device)]

    def decode(self, out: Out, examples: Sequence[Example]) -> list[Of]:
        return self._by_share(examples, lambda kind, share: kind.decode(self._out(share, out), share.examples))

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Of]:
        def predict(kind: Kind, share: _Share) -> list[Any]:
            mine = [inputs[i][1] for i in share.at]
            return kind.predictions(self._out(share, out), share.examples, mine, min_score)

        return self._by_share(examples, predict)

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        return sum(
            self.of(share.task).changed(self._out(share, exact), self._out(share, out), share.examples)
            for share in _shares(examples)
        )

    def score(self, targets: Targets, answers: Sequence[Of]) -> dict[str, float]:
        """Return each kind's metrics under its task's name, and the mean of those that count: higher is better."""
        found: dict[str, float] = {}
        main = []
        for task, at in _by_task(answer.task for answer in answers):
            mine = _picked([answer.what for answer in answers], at)
            scores = self.of(task).score(_picked(targets, at), mine)
            found |= {f"{self.names[task]}.{metric}": value for metric, value in scores.items()}
            metric = self.judged[task]
            main.append(-scores[metric] if metric in metrics.LOWER_IS_BETTER else scores[metric])
        return {MEAN: float(np.mean(main)), **found}

    @classmethod
    def describe(cls, record: Record) -> str:
        return "Several tasks at once."

    def _out(self, share: _Share, out: Out) -> Out:
        """Return the head's output for a task's rows, as its kind takes it."""
        import torch

        mine = [out[i] for i in share.rows]
        return mine if self.kinds[share.task].reads_tokens else torch.stack(mine)

    def _by_share(self, examples: Sequence[Example], call: Callable[[Kind, _Share], Iterable[Any]]) -> list[Of]:
        found: dict[int, Of] = {}
        for share in _shares(examples):
            for place, each in zip(share.at, call(self.of(share.task), share), strict=True):
                found[place] = Of(share.task, each)
        return [found[i] for i in range(len(examples))]


class Datasets:
    """Several datasets end to end, as far as a resumed run has to recognise them."""

    def __init__(self, datasets: Sequence[Dataset], temperature: float) -> None:
        self.starts = np.cumsum([0, *(len(dataset) for dataset in datasets)])
        facts = repr(([dataset.digest for dataset in datasets], float(temperature)))
        self.digest = hashlib.sha256(facts.encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.starts[-1])


class Joined(Encoded):
    """Several datasets, each as its own kind computes it; the examples of an epoch are drawn by temperature."""

    def __init__(self, parts: Sequence[Encoded], temperature: float) -> None:
        self._parts, self._temperature = tuple(parts), temperature
        self._whole = Datasets([part.dataset for part in parts], temperature)
        self.dataset = cast(Any, self._whole)

    def rows(self, of: Sequence[Array]) -> Array:
        """Return examples of each dataset as examples of all of them."""
        return np.concatenate([start + rows for start, rows in zip(self._whole.starts, of, strict=False)])

    def examples(self, indices: Array) -> list[Example]:
        found: dict[int, Example] = {}
        for task, at in self._of(indices):
            examples = self._parts[task].examples(indices[at] - self._whole.starts[task])
            found |= {place: _marked(task, example) for place, example in zip(at.tolist(), examples, strict=True)}
        return [found[i] for i in range(len(indices))]

    def targets(self, indices: Array) -> list[Any]:
        found: dict[int, Any] = {}
        for task, at in self._of(indices):
            found |= zip(at.tolist(), self._parts[task].targets(indices[at] - self._whole.starts[task]), strict=True)
        return [found[i] for i in range(len(indices))]

    def sampled(self, rows: Array, seed: Sequence[int]) -> Array:
        """Return as many examples in all; of a dataset of n in proportion to n^(1/T), a small one's several times."""
        if self._temperature == 1:
            return rows
        members = [(task, rows[at]) for task, at in self._of(rows)]
        wanted = counts([len(mine) for _, mine in members], self._temperature)
        parts = []
        for (task, mine), count in zip(members, wanted, strict=True):
            rng = np.random.default_rng(np.random.SeedSequence(list(seed), spawn_key=(task,)))
            whole, rest = divmod(count, len(mine))
            parts += [mine] * whole + [rng.permutation(mine)[:rest]]
        return np.concatenate(parts)

    def _of(self, indices: Array) -> Iterator[tuple[int, Array]]:
        tasks = np.searchsorted(self._whole.starts, indices, side="right") - 1
        return _by_task(tasks.tolist())

    @property
    def truncated(self) -> int:
        return sum(part.truncated for part in self._parts)


def counts(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return how many examples of each dataset an epoch has: their sum in proportion to n^(1/T), in whole numbers."""
    shares = np.asarray(sizes, dtype=np.float64) ** (1 / temperature)
    exact = sum(sizes) * shares / shares.sum()
    found = np.floor(exact).astype(np.int64)
    missing = sum(sizes) - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:missing]] += 1  # those that were cut most
    return [int(count) for count in found]


def head_of(v: Params, task: int) -> dict[str, Tensor]:
    """Return a task's own head, under the names that its kind knows."""
    prefix = f"head.{task}."
    return {f"head.{name.removeprefix(prefix)}": t for name, t in v.items() if name.startswith(prefix)}


def _by_task(tasks: Iterable[int]) -> Iterator[tuple[int, Array]]:
    """Yield each task and its places, in order."""
    whole = np.fromiter(tasks, dtype=np.int64)
    for task in np.unique(whole).tolist():
        yield task, np.flatnonzero(whole == task)


def _shares(examples: Sequence[Example]) -> Iterator[_Share]:
    starts = np.cumsum([0] + [len(example) for example in examples])
    for task, at in _by_task(example[0].at.task for example in examples):
        rows = [k for i in at for k in range(starts[i], starts[i + 1])]
        yield _Share(task, at, rows, [_plain(examples[i]) for i in at])


def _marked(task: int, example: Example) -> Example:
    return [row._replace(at=Of(task, row.at)) for row in example]


def _plain(example: Example) -> Example:
    return [row._replace(at=row.at.what) for row in example]


def _picked(values: Sequence[Any], at: Array) -> Any:
    """Return some of the targets or answers of several tasks, as the kind of one gave them: an array, or a list."""
    mine = [values[i] for i in at]
    return np.stack(mine) if isinstance(mine[0], np.generic | np.ndarray) else mine
