"""What each layer's adapters are worth: a task's score without those of every span of layers, with no retraining.

Houlsby et al. 2019, §3.6 and figure 6. There the task's norms and head stay as they were trained.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import compose as algebra
from adaptree.compose import Drop, Name, Parts, drop, dropped
from adaptree.compose.blocks import Block
from adaptree.compose.merge import steps_of
from adaptree.data.events import Listener, silent
from adaptree.data.read import Source
from adaptree.errors import CompositionError, UsageError
from adaptree.kinds import Example, main_metric
from adaptree.kinds.metrics import LOWER_IS_BETTER
from adaptree.methods import Method, OwnNorm
from adaptree.models.evaluate import CHUNK, Part, concatenated, open_labelled, whole
from adaptree.models.shared_layers import outputs
from adaptree.reports.json_text import json_text
from adaptree.reports.markdown import code, plain
from adaptree.reports.markdown import table as markdown_table
from adaptree.reports.plots import FAINT, INK, matrix, save, style
from adaptree.reports.text import short
from adaptree.training.settings import check_number

if TYPE_CHECKING:
    from adaptree.models.bound import Bound

MOST_TOKENS = 4096
"""How many tokens all tasks run on before the next ones: the states of every layer are kept for these."""
TIMED_ROWS, ROUNDS, FEWEST_ROUNDS, SECONDS = 64, 31, 7, 10.0
"""The inputs that the speed is measured on, how often at most and at least, and after how long it is enough."""


@dataclass(frozen=True)
class Span:
    """A task's score without the adapters of the layers from `first` to `last`."""

    first: int
    last: int
    score: float
    change: float
    """The score minus that of the whole task, in points; of errors, in per cent of it. Below zero is worse."""

    @property
    def layers(self) -> str:
        """The layers as `drop` takes them: 0-2, or 3."""
        return spelled(self.first, self.last)


@dataclass(frozen=True)
class Ablation:
    """A task's scores without the adapters of every span of layers, and which of the spans can go."""

    task: str
    metric: str
    rows: int
    score: float
    """Of the whole task."""
    interval: tuple[float, float] | None
    """The 95 % interval of that score."""
    layers: tuple[int, ...]
    """The layers that have something to remove."""
    removed: str
    """What is removed from a span of layers: adapters, adapters and norms, or norms."""
    keep_norms: bool
    """Whether the task has norms of its own, and they stay in the layers without adapters."""
    spans: tuple[Span, ...]
    within: float
    """How many points one is ready to lose."""
    best: Span | None
    """Of the spans that lose no more than that, the one of the most layers; of those, the best."""
    speed: float | None
    """How many times as fast a forward pass is without that span; None if no difference was measured."""
    expression: str
    """The task without that span, as a composition; empty if there is none."""
    command: str
    """A command that uses or keeps it."""

    @property
    def unit(self) -> str:
        return "%" if self.metric in LOWER_IS_BETTER else "points"

    @property
    def sentence(self) -> str:
        """What can go, and what that costs and gains."""
        if self.best is None:
            return (
                f"nothing can go: removing the {self.removed} of any layer costs more than {self.within:g} {self.unit}."
            )
        first, last = self.best.first, self.best.last
        which = f"layer {first}" if first == last else f"layers {first} to {last}"
        if (first, last) == (self.layers[0], self.layers[-1]):
            which = "all layers" if len(self.layers) > 1 else which
        fast = "" if self.speed is None else f", {self.speed:.2f} times as fast"
        return f"the {self.removed} of {which} can go: {minus(self.best.change)} {self.unit}{fast}."

    def change(self, first: int, last: int) -> float | None:
        """Return the change without the layers from first to last; None if that is no span."""
        return next((span.change for span in self.spans if (span.first, span.last) == (first, last)), None)

    def table(self) -> list[dict[str, str]]:
        """Return the changes as a table: a row for each first layer removed, a column for each last one."""
        return [
            {"first": str(first)} | {str(last): signed(self.change(first, last)) for last in self.layers}
            for first in self.layers
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return what `ablate --format json` prints."""
        return {**asdict(self), "unit": self.unit, "sentence": self.sentence}


def spelled(first: int, last: int) -> str:
    """Return layers as `drop` takes them."""
    return f"{first}-{last}" if last > first else str(first)


def signed(change: float | None) -> str:
    """Return a change with its sign and one decimal; '' for None."""
    return "" if change is None else "0.0" if abs(change) < 0.05 else f"{change:+.1f}"


def minus(change: float | None) -> str:
    """Return a change as text for people, with a true minus sign."""
    return signed(change).replace("-", "−")


def ablate(
    bound: Bound,
    data: Source,
    *,
    within: float = 0.5,
    keep_norms: bool | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    on_event: Listener = silent,
) -> Ablation:
    """Return a task's scores on labelled data without its adapters in every span of layers.

    `keep_norms` says whether the task's own norms stay in those layers: by default they do, as in the paper, unless the
    task has nothing else. `within` is how much one is ready to lose, in points, or per cent of an error such as
    perplexity. `on_event` is called with an event "scored" for every few rows.
    """
    check_number("within", within)
    layers, removed, kept = _removable(bound, keep_norms)
    bound = bound.exact
    dataset = open_labelled(
        bound, data, text=text, text_pair=text_pair, label=label, encoding=encoding, no_header=no_header,
        on_event=on_event,
    )  # fmt: skip
    part = whole(dataset)
    targets = dataset.targets(part.rows)
    pairs = [(first, last) for i, first in enumerate(layers) for last in layers[i:]]
    answers, *others = _answers(bound, pairs, kept, part, on_event)
    scores = bound.kind.score(targets, answers)
    metric = main_metric(bound.task.record)
    if metric not in scores:  # of a joint training, the mean over its tasks
        metric = bound.kind.metrics[0]
    spans: list[Span] = []
    for (first, last), found in zip(pairs, others, strict=True):
        score = bound.kind.score(targets, found)[metric]
        spans.append(Span(first, last, score, _change(metric, score, scores[metric])))
    best = _best(spans, layers, within)
    less = None if best is None else _without(bound, best.layers, kept)
    return Ablation(
        task=repr(bound.composition.expression),
        metric=metric,
        rows=len(part),
        score=scores[metric],
        interval=bound.kind.intervals(targets, answers).get(metric),
        layers=layers,
        removed=removed,
        keep_norms=kept,
        spans=tuple(spans),
        within=within,
        best=best,
        speed=None if less is None else _speed(bound, less, _timed(bound, part)),
        expression="" if less is None else repr(less.composition.expression),
        command="" if less is None else _command(less, all_layers=best == spans[len(layers) - 1]),
    )


def _answers(
    bound: Bound, spans: Sequence[tuple[int, int]], keep_norms: bool, part: Part, on_event: Listener
) -> list[Any]:
    """Return the decoded answers of the whole task, and of the task without each of some spans of layers."""
    bounds = [bound, *(_without(bound, spelled(first, last), keep_norms) for first, last in spans)]
    depth = range(bound.base.hooked.sites.depth)
    signatures = [(False,) * len(depth), *(tuple(a <= layer <= b for layer in depth) for a, b in spans)]
    answers: list[list[Any]] = [[] for _ in bounds]
    done = 0
    for examples, out in outputs(bounds, signatures, _examples(bound, part)):
        for mine, found in zip(answers, out, strict=True):
            mine.append(bound.kind.decode(found, examples))
        done += len(examples)
        on_event({"event": "scored", "rows": done, "of": len(part), "spans": len(spans)})
    return [concatenated(mine) for mine in answers]


def _examples(bound: Bound, part: Part) -> Iterator[list[Example]]:
    """Yield the encoded rows of a part in their order, a few at a time."""
    some: list[Example] = []
    tokens = 0
    for start in range(0, len(part), CHUNK):
        inputs = bound.kind.inputs(part.dataset.inputs(part.rows[start : start + CHUNK]), bound.task.record)
        for example in bound.read(inputs):
            length = sum(len(row.ids) for row in example)
            if some and tokens + length > MOST_TOKENS:
                yield some
                some, tokens = [], 0
            some.append(example)
            tokens += length
    if some:
        yield some


def _removable(bound: Any, keep_norms: bool | None) -> tuple[tuple[int, ...], str, bool]:
    """Return the layers that have something to remove, what that is called, and whether norms stay there."""
    from adaptree.models.bound import Bound

    if not isinstance(bound, Bound):
        raise CompositionError(f"{bound.expression!r} is several tasks.", hint="Ablate one of them at a time.")
    expression = bound.composition.expression
    if isinstance(expression, Drop):
        raise CompositionError(
            f"{expression!r} lacks some layers already.", hint=f"Ablate the whole: {expression.inside!r}"
        )
    for method in _methods(bound.composition.parts):
        if method.standalone:
            raise UsageError(f"{method.name} does not use the base: it has no adapters to remove.")
        if not method.by_layer:
            raise UsageError(
                f"{method.name} trains the base's own weights: it has no adapters to remove.",
                hint=f'To put a layer back to the base\'s: adaptree evaluate "{drop(expression, layers="0")!r}" DATA',
            )
    hooked = bound.base.hooked
    sites = hooked.sites
    plan, weights = algebra.together(sites, hooked.frozen, bound.composition.parts)
    norms = {norm.path for norm in sites.norms}
    own: set[int] = set()
    others: set[int] = set()
    for path, step in ((path, step) for path, entry in plan.items() for step in steps_of(entry)):
        (own if isinstance(step, OwnNorm) else others).add(sites.layer_of(f"{path}."))
    for name in weights:
        (own if name.rpartition(".")[0] in norms else others).add(sites.layer_of(name))
    if not own and not others:
        raise UsageError(f"{bound.spelling} has nothing in the layers: there are no adapters to remove.")
    if others and keep_norms is not False:
        return tuple(sorted(others)), "adapters", bool(own)
    if not others and keep_norms:
        raise UsageError(f"{bound.spelling} has norms and nothing else.", hint="Leave out --keep-norms.")
    return tuple(sorted(own | others)), " and ".join(["adapters"] * bool(others) + ["norms"] * bool(own)), False


def _methods(parts: Parts) -> Iterator[Method]:
    """Yield the methods that a composition is made of."""
    for method, _ in parts:
        yield from _methods(method.parts) if isinstance(method, Block) else (method,)


def _without(bound: Bound, layers: str, keep_norms: bool) -> Bound:
    """Return the task without its adapters in some layers."""
    expression = drop(bound.composition.expression, layers=layers, keep_norms=keep_norms)
    return type(bound)(bound.base, dropped(bound.composition, expression))


def _change(metric: str, score: float, before: float) -> float:
    """Return by how many points a score is better; of errors, by how many per cent."""
    if metric not in LOWER_IS_BETTER:
        return 100 * (score - before)
    if score == before:
        return 0.0
    return 100 * (before - score) / before if before else -math.inf


def _best(spans: Sequence[Span], layers: Sequence[int], within: float) -> Span | None:
    """Return the span of the most layers that costs no more than `within`; of equals, the best."""

    def size(span: Span) -> int:
        return sum(span.first <= layer <= span.last for layer in layers)

    cheap = [span for span in spans if span.change >= -within - 1e-9]
    return max(cheap, key=lambda span: (size(span), span.change), default=None)


def _timed(bound: Bound, part: Part) -> list[Example]:
    """Return the first inputs, encoded, on which the speed is measured."""
    return bound.read(bound.kind.inputs(part.dataset.inputs(part.rows[:TIMED_ROWS]), bound.task.record))


def _speed(before: Bound, after: Bound, examples: Sequence[Example]) -> float | None:
    """Return how many times as fast the second task is: the median of rounds in which each runs once, in turn.

    None if it was not faster in three quarters of them: other work on the machine may hide a small difference.
    """
    ratios: list[float] = []
    began = time.perf_counter()
    while len(ratios) <= ROUNDS and (len(ratios) <= FEWEST_ROUNDS or time.perf_counter() - began < SECONDS):
        seconds = {}
        for bound in (before, after) if len(ratios) % 2 else (after, before):
            start = time.perf_counter()
            bound.compute(examples)
            seconds[bound] = time.perf_counter() - start
        ratios.append(seconds[before] / seconds[after])
    measured = ratios[1:]  # in the first round caches are cold
    return float(np.median(measured)) if np.quantile(measured, 0.25) > 1 else None


def _command(less: Bound, *, all_layers: bool) -> str:
    """Return the command that keeps a task without some layers; where it cannot be kept, one that uses it."""
    expression = less.composition.expression
    assert isinstance(expression, Drop)
    if isinstance(expression.inside, Name) and not expression.keep_norms and not all_layers:
        name = f"{expression.inside.reference.partition('@')[0][:59]}-less"
        return f'adaptree compose "{expression!r}" --name {shlex.quote(name)}'
    return f'adaptree predict "{expression!r}" --file FILE'


def write(found: Ablation, folder: str | Path) -> list[Path]:
    """Write figure.png, table.md and ablation.json into a folder that is there, and return their paths."""
    paths = [Path(folder) / name for name in ("figure.png", "table.md", "ablation.json")]
    heatmap(found, paths[0])
    paths[1].write_text(markdown(found), encoding="utf-8")
    paths[2].write_text(json_text(found.to_dict(), indent=1) + "\n", encoding="utf-8")
    return paths


@style()
def heatmap(found: Ablation, path: Path) -> None:
    """Draw the changes: a row for each first layer removed, a column for each last one, and a frame around the best."""
    from matplotlib.patches import Rectangle

    names = [str(layer) for layer in found.layers]
    changes = [[found.change(first, last) for last in found.layers] for first in found.layers]
    values = np.array([[np.nan if change is None else change for change in row] for row in changes], dtype=float)
    values[np.isinf(values)] = np.nan
    texts = [[minus(change) for change in row] for row in changes]
    figure, axis = matrix(values, names, names, cell=(max(0.62, 3.8 / len(names)), 0.42), texts=texts)
    if found.best is not None:
        at = found.layers.index(found.best.last) - 0.5, found.layers.index(found.best.first) - 0.5
        axis.add_patch(Rectangle(at, 1, 1, fill=False, edgecolor=INK, linewidth=1.6, zorder=3, clip_on=False))
    axis.set_title(f"{short(found.task, 32)} without the {found.removed} of some layers", pad=8)
    axis.xaxis.set_label_position("top")
    axis.set_xlabel("last layer removed", loc="left")
    axis.set_ylabel("first layer removed", loc="top")
    below = f"change in {found.unit}; the whole task has {found.metric} {found.score:.4f} on {found.rows:,} rows"
    axis.annotate(below, (0, 0), (0, -8), "axes fraction", textcoords="offset points", color=FAINT, va="top")
    save(figure, path)


def markdown(found: Ablation) -> str:
    """Return the changes as a Markdown page, with what can go and how."""
    head, *_ = rows = found.table()
    between = "" if found.interval is None else " (95 %: {:.4f} to {:.4f})".format(*found.interval)
    kept = "; its norms there and its head stay" if found.keep_norms else ""
    page = [
        f"# {plain(found.task)} without the {found.removed} of some layers",
        "",
        f"The whole task has {plain(found.metric)} {found.score:.4f}{between} on {found.rows:,} rows. Each cell is the",
        f"change, in {found.unit}, when the {found.removed} from the row's layer to the column's are removed{kept}.",
        "Nothing is trained again.",
        "",
        markdown_table(["from \\ to", *list(head)[1:]], [list(row.values()) for row in rows]),
        "",
        found.sentence[0].upper() + found.sentence[1:],
        *(["", code(found.command)] if found.command else []),
        "",
        "![change of the score by the layers removed](figure.png)",
    ]
    return "\n".join(page) + "\n"
