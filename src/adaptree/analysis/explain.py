"""What a fused task attends to: how much each adapter counts in each layer, and what is lost without one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import compose as algebra
from adaptree.data.batch import group
from adaptree.data.read import Source
from adaptree.data.read import rows as read_rows
from adaptree.data.table import name_of
from adaptree.errors import CompositionError, UsageError, near
from adaptree.kinds import metrics
from adaptree.methods import Fusion
from adaptree.reports.drawing import distinct, short
from adaptree.reports.plots import DPI, FRONT, INK
from adaptree.tasks.task import FUSES
from adaptree.training.evaluate import evaluate

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.models.bound import Bound

Array = np.ndarray[Any, Any]
CHUNK, BATCH = 1024, 64


@dataclass(frozen=True)
class Attention:
    """How much each adapter counts in each layer, on the mean over tokens: each row of `weights` sums up to one.

    Padding is no token. Special tokens are: the base computes them as any other, and some heads read nothing else.
    """

    task: str
    names: tuple[str, ...]
    """The adapters, by the version that is fused."""
    layers: tuple[int, ...]
    weights: Array
    """(layers, adapters)"""
    inputs: int
    tokens: int

    @property
    def mean(self) -> Array:
        """(adapters,): over the layers, each counting the same."""
        found: Array = self.weights.mean(0)
        return found

    @property
    def most(self) -> str:
        """The adapter that is attended to most, on the mean over layers; of several the first."""
        return self.names[int(self.mean.argmax())]

    @property
    def least(self) -> str:
        """The one that is attended to least; of several the last, so that it is another one than `most`."""
        return self.names[len(self.names) - 1 - int(self.mean[::-1].argmin())]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer and one for their mean, with a column for each adapter."""
        named = [(str(layer), row) for layer, row in zip(self.layers, self.weights, strict=True)]
        return [{"layer": name, **self._by_name(row)} for name, row in (*named, ("mean", self.mean))]

    def to_dict(self) -> dict[str, Any]:
        """As `explain --format json` prints it."""
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
    """A task's score with one of its adapters masked, or with none."""

    adapter: str | None
    metric: str
    score: float
    change: float
    """The score less the one with nothing masked."""
    scores: dict[str, float]


def attention(bound: Bound, inputs: Any) -> Attention:
    """The mean attention of a fused task over the tokens of some inputs, which may be more than fit into memory."""
    names = adapters_of(bound)
    seen: dict[int, list[Tensor]] = defaultdict(list)
    watched = _with(bound, lambda fusion: fusion.watched(lambda layer, s: seen[layer].append(s.double().cpu())))
    sums: dict[int, Any] = defaultdict(float)
    count = tokens = 0
    for some in _chunks([inputs] if isinstance(inputs, str) else inputs):
        seen.clear()
        units, _ = watched.run(bound.kind.inputs(some, bound.task.record), BATCH)
        rows = [row for unit in units for row in unit]
        batches = group([len(row.ids) for row in rows], BATCH)  # as the base runs them, one after the other
        lengths = [[len(rows[i].ids) for i in at] for at in batches]
        for layer, told in seen.items():
            calls = len(told) // len(batches)  # ALBERT runs a layer several times in a pass
            for number, s in enumerate(told):
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
) -> list[Masked]:
    """A fused task's score on labelled data: with nothing masked, then without each of some adapters.

    The others share the weight of one that is masked, in every layer.
    """
    names = adapters_of(bound)
    for name in adapters:
        if name not in names:
            hint = near(name, names) or f"There are: {', '.join(names)}."
            raise UsageError(f"'{name}' is not fused in '{bound.task.record.name}'.", hint=hint)
    again = data if isinstance(data, str | PathLike) else list(data)
    record = bound.task.record
    metric = str(record.settings.get("metric") or metrics.main_metric(record.kind, record.labels))
    found: list[Masked] = []
    for masking in (None, *adapters):
        task = bound if masking is None else _with(bound, _without(names.index(masking)))
        told = evaluate(task, again, text=text, text_pair=text_pair, label=label, encoding=encoding)
        scores = told["metrics"]["test"]
        whole = found[0].score if found else scores[metric]
        found.append(Masked(masking, metric, scores[metric], scores[metric] - whole, scores))
    return found


def inputs_of(
    bound: Bound, data: Source, *, text: str | None = None, text_pair: str | None = None, encoding: str = "utf-8"
) -> Iterator[Any]:
    """The inputs in a file's rows, read as `predict` reads them."""
    reader = None
    name = name_of(data)
    for number, row in read_rows(data, encoding=encoding):
        reader = reader or bound.reader(row, {"text": text, "pair": text_pair, "label": None})
        yield reader(row, number, name)


def adapters_of(bound: Bound) -> tuple[str, ...]:
    """The adapters that a fused task attends over, in their order; the topmost's, where several are stacked."""
    from adaptree.models.bound import Bound

    if not isinstance(bound, Bound):
        raise CompositionError("several tasks answer here, and one is to be explained.", hint="Name one of them.")
    topmost = [method for method, _ in bound.composition.parts if isinstance(method, Fusion)][-1:]
    for task in reversed(bound.composition.tasks):  # which one it is of: others may be below it, or inside a block
        if task.record.extra.get(FUSES) and [str(algebra.own(task)[0])] == [str(method) for method in topmost]:
            return algebra.parse(task.record.extra[FUSES]).names
    inside = next((task.record.name for task in bound.composition.tasks if task.record.extra.get(FUSES)), "")
    raise CompositionError(
        f"{bound.composition.expression!r} does not attend to anything: only what is fused does.",
        hint=f"adaptree explain {inside} …" if inside else 'adaptree compose "fuse(a, b)" --name NAME --train DATA',
    )


def _with(bound: Bound, change: Callable[[Fusion], Fusion]) -> Bound:
    """The same with its topmost fusion changed."""
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


def heatmap(found: Attention, folder: str | Path) -> list[Path]:
    """The attention as a picture, in attention.svg and attention.png: a row for each layer, and one for their mean."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    colours = LinearSegmentedColormap.from_list("attention", ["#f4f7f6", FRONT])
    values = np.vstack([found.weights, found.mean])
    high = float(values.max())
    n = len(found.names)
    cell = max(0.85, 4.2 / n)
    names = distinct(found.names)
    lengths = [0.075 * len(name) for name in names]  # in inches, as all that follows
    slanted = max(lengths) > cell
    wide, tall = cell * n, 0.42 * (len(values) + 0.3)
    above = 0.95 + (0.62 * max(lengths) if slanted else 0.0)
    over = [0.75 * length - (n - i - 0.5) * cell for i, length in enumerate(lengths)]
    size = (0.95 + wide + max(0.2, *over if slanted else (0.0,)), tall + above + 0.3)
    figure = Figure(figsize=size, dpi=DPI)
    FigureCanvasAgg(figure)
    axis: Any = figure.add_axes((0.95 / size[0], 0.3 / size[1], wide / size[0], tall / size[1]))
    places = [*range(len(found.layers)), len(found.layers) + 0.3]  # the mean stands a little apart
    for at, row in zip(places, values, strict=True):
        for i, value in enumerate(row):
            axis.barh(at, 0.97, left=i + 0.015, height=0.94, color=colours(value / high))
            ink = "white" if value > 0.6 * high else "#1f2733"
            axis.text(i + 0.5, at, f"{value:.2f}", ha="center", va="center", fontsize=9, color=ink)
    axis.set(xlim=(0, n), ylim=(places[-1] + 0.5, -0.5))
    axis.set_yticks(places, [*(f"layer {layer}" for layer in found.layers), "mean"], fontsize=9, color=INK)
    slant = {"rotation": 40, "ha": "left", "rotation_mode": "anchor"} if slanted else {}
    axis.set_xticks([i + 0.5 for i in range(n)], names, fontsize=9, color="#1f2733", **slant)
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    axis.spines[:].set_visible(False)
    title = f"What {short(found.task, 32)} attends to"
    figure.text(0.12 / size[0], 1 - 0.24 / size[1], title, fontsize=12, fontweight="bold")
    said = f"mean weight of each adapter over {found.tokens:,} tokens; evenly {1 / n:.2f}"
    figure.text(0.12 / size[0], 1 - 0.48 / size[1], said, fontsize=9, color=INK)
    paths = [folder / "attention.svg", folder / "attention.png"]
    with rc_context({"svg.hashsalt": "adaptree"}):  # the same numbers give the same bytes
        figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=DPI)
    return paths
