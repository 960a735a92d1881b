"""What a fused task attends to: the weight of each adapter in each layer, and what the score loses without one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import compose as algebra
from adaptree.analysis import attribution
from adaptree.data.batch import group
from adaptree.data.read import Source
from adaptree.errors import CompositionError, UsageError, near
from adaptree.kinds import main_metric
from adaptree.methods.fusion import Fusion
from adaptree.models.evaluate import evaluate
from adaptree.reports.plots import matrix, save, style
from adaptree.reports.text import distinct, short
from adaptree.tasks.record import FUSES

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.models.bound import Bound

Array = np.ndarray[Any, Any]
CHUNK, BATCH = 1024, 64


@dataclass(frozen=True)
class Attention:
    """The attention of a fused task, as the mean over tokens: each row of `weights` sums to one.

    Padding does not count. Special tokens do: the base computes them like any other, and some heads read only those.
    """

    task: str
    names: tuple[str, ...]
    """The adapters, as name@version."""
    layers: tuple[int, ...]
    weights: Array
    """(layers, adapters)"""
    inputs: int
    tokens: int

    @property
    def mean(self) -> Array:
        """The mean over layers, (adapters,)."""
        found: Array = self.weights.mean(0)
        return found

    @property
    def most(self) -> str:
        """The adapter with the highest mean over layers; the first of equals."""
        return self.names[int(self.mean.argmax())]

    @property
    def least(self) -> str:
        """The adapter with the lowest mean over layers; the last of equals, so that it is not `most`."""
        return self.names[len(self.names) - 1 - int(self.mean[::-1].argmin())]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per layer and one for their mean, with a column per adapter."""
        named = [(str(layer), row) for layer, row in zip(self.layers, self.weights, strict=True)]
        return [{"layer": name, **self._by_name(row)} for name, row in (*named, ("mean", self.mean))]

    def to_dict(self) -> dict[str, Any]:
        """Return what `explain --format json` prints."""
        return {
            "task": self.task,
            "adapters": list(self.names),
            "layers": list(self.layers),
            "weights": self.weights.tolist(),
            "mean": self._by_name(self.mean),
            "most": self.most,
            "least": self.least,
            "inputs": self.inputs,
            "tokens": self.tokens,
        }

    def _by_name(self, row: Array) -> dict[str, float]:
        return dict(zip(self.names, row.tolist(), strict=True))


@dataclass(frozen=True)
class Masked:
    """A task's score with one of its adapters masked, or with none (`adapter` is None)."""

    adapter: str | None
    metric: str
    score: float
    change: float
    """The score minus the one with nothing masked."""
    scores: dict[str, float]


def attention(bound: Bound, inputs: Any) -> Attention:
    """Return the mean attention of a fused task over the tokens of some inputs, which may be more than memory holds."""
    names = adapters_of(bound)
    seen: dict[int, list[Tensor]] = defaultdict(list)
    watched = _with(bound, lambda fusion: fusion.watched(lambda layer, s: seen[layer].append(s.double().cpu())))
    sums: dict[int, Any] = defaultdict(float)
    count = tokens = 0
    for some in _chunks([inputs] if isinstance(inputs, str) else inputs):
        seen.clear()
        examples, _ = watched.run(bound.kind.inputs(some, bound.task.record), BATCH)
        encodings = [encoding for example in examples for encoding in example]
        batches = group([len(encoding.ids) for encoding in encodings], BATCH)  # in the order that the base ran them
        lengths = [[len(encodings[i].ids) for i in at] for at in batches]
        for layer, outputs in seen.items():
            calls = len(outputs) // len(batches)  # ALBERT runs a layer several times in a pass
            for number, s in enumerate(outputs):
                for row, length in zip(s.numpy(), lengths[number // calls], strict=True):
                    sums[layer] += row[:length].sum(0) / calls
        count += len(some)
        tokens += sum(map(sum, lengths))
    bound.truncated += watched.truncated
    if not tokens:
        raise UsageError("there is nothing to explain: no text was given.", hint='adaptree explain TASK "some text"')
    layers = tuple(sorted(sums))
    weights = np.stack([sums[layer] / tokens for layer in layers])
    return Attention(bound.task.record.reference, names, layers, weights, count, tokens)


def masked(
    bound: Bound,
    data: Source,
    adapters: Sequence[str],
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
) -> list[Masked]:
    """Return a fused task's scores on labelled data: first with nothing masked, then without each of the adapters.

    A masked adapter's weight goes to the others, in every layer.
    """
    names = adapters_of(bound)
    for name in adapters:
        if name not in names:
            hint = near(name, names) or f"There are: {', '.join(names)}."
            raise UsageError(f"'{name}' is not fused in '{bound.task.record.name}'.", hint=hint)
    again = list(data) if isinstance(data, Iterator) else data  # it is read once for each mask
    record = bound.task.record
    metric = main_metric(record)
    found: list[Masked] = []
    for masking in (None, *adapters):
        task = bound if masking is None else _with(bound, _without(names.index(masking)))
        result = evaluate(
            task, again, text=text, text_pair=text_pair, label=label, encoding=encoding, no_header=no_header
        )
        scores = result["metrics"]["test"]
        whole = found[0].score if found else scores[metric]
        found.append(Masked(masking, metric, scores[metric], scores[metric] - whole, scores))
    return found


def default_way(bound: Any) -> str:
    """Return how a task is explained by default: by attention where it is fused, else by its words."""
    try:
        adapters_of(bound)
    except CompositionError:
        return attribution.BY[0]
    return "attention"


def adapters_of(bound: Bound) -> tuple[str, ...]:
    """Return the adapters that a fused task attends over, in order; of stacked fusions, those of the topmost."""
    from adaptree.models.bound import Bound

    if not isinstance(bound, Bound):
        raise CompositionError("several tasks predict here, and only one can be explained.", hint="Name one of them.")
    topmost = [method for method, _ in bound.composition.parts if isinstance(method, Fusion)][-1:]
    for task in reversed(bound.composition.tasks):  # find its task: others may be below it, or inside a block
        if task.record.extra.get(FUSES) and [str(algebra.own(task)[0])] == [str(method) for method in topmost]:
            return algebra.parse(task.record.extra[FUSES]).names
    inside = next((task.record.name for task in bound.composition.tasks if task.record.extra.get(FUSES)), "")
    raise CompositionError(
        f"{bound.composition.expression!r} does not attend to anything: only what is fused does.",
        hint=f"adaptree explain {inside} …" if inside else 'adaptree compose "fuse(a, b)" --name NAME --train DATA',
    )


def _with(bound: Bound, change: Callable[[Fusion], Fusion]) -> Bound:
    """Return the bound task with its topmost fusion changed."""
    parts = list(bound.composition.parts)
    at = max(i for i, (method, _) in enumerate(parts) if isinstance(method, Fusion))
    method, v = parts[at]
    assert isinstance(method, Fusion)
    parts[at] = (change(method), v)
    return type(bound)(bound.base, replace(bound.composition, parts=parts))


def _without(adapter: int) -> Callable[[Fusion], Fusion]:
    return lambda fusion: fusion.without([adapter])


def _chunks(inputs: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(inputs)
    while some := list(islice(rest, CHUNK)):
        yield some


@style()
def heatmap(found: Attention, folder: str | Path) -> list[Path]:
    """Draw attention.svg and attention.png: a row for each layer and one for their mean; return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    values = np.vstack([found.weights, found.mean])
    texts = [[f"{value:.2f}" for value in row] for row in values]
    rows = [*(f"layer {layer}" for layer in found.layers), "mean"]
    n = len(found.names)
    figure, axis = matrix(values, rows, distinct(found.names), cell=(max(0.85, 4.2 / n), 0.42), texts=texts)
    axis.axhline(len(found.layers) - 0.5, color="white", lw=6)  # the mean stands a little apart
    axis.set_title(f"What {short(found.task, 32)} attends to")
    axis.set_xlabel(f"mean weight of each adapter over {found.tokens:,} tokens; evenly {1 / n:.2f}", loc="left")
    paths = [folder / "attention.svg", folder / "attention.png"]
    save(figure, *paths)
    return paths
