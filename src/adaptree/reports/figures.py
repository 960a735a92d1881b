"""The figures of a task's card, drawn from its record alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adaptree.reports.plots import BLUE, FAINT, GREEN, LINE, curves, drawable, matrix, panels, style, svg
from adaptree.reports.text import amount, distinct, short

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

TITLES = {
    "course.svg": "Loss and score by epoch",
    "confusion.svg": "Confusion matrix",
    "calibration.svg": "How often it is right, by how sure it is",
    "scatter.svg": "Predicted against gold",
}


def figures(record: Record) -> dict[str, str]:
    """Return every figure of a task as SVG, by the name of its file."""
    return {name: draw() for name, draw in _drawings(record).items()}


def images(record: Record) -> dict[str, str]:
    """Return each figure as an image in Markdown, by the name of its file, without drawing it."""
    return {name: f"![{TITLES[name]}]({name})" for name in _drawings(record)}


def course(record: Record) -> str:
    """Return the figure of a run's epochs; "" where there are fewer than two."""
    draw = _drawings(record).get("course.svg")
    return draw() if draw else ""


def _drawings(record: Record) -> dict[str, Callable[[], str]]:
    """Return a function that draws each figure for which the record has the numbers, by the name of its file."""
    from adaptree.kinds import main_metric

    found: Mapping[str, Any] = record.extra.get("insight") or {}
    metric, best = main_metric(record), int(record.settings.get("best_epoch") or 0)
    drawings: dict[str, Callable[[], str]] = {}
    if len(record.history) > 1 and any(metric in entry for entry in record.history):
        drawings["course.svg"] = lambda: learning(record.history, metric, best)
    if counts := found.get("confusion"):
        drawings["confusion.svg"] = lambda: confusion(counts["labels"], counts["counts"])
    if bins := found.get("calibration"):
        drawings["calibration.svg"] = lambda: calibration(bins["bins"], bins["error"])
    if targets := found.get("targets"):
        drawings["scatter.svg"] = lambda: scatter(targets)
    return drawings


@style()
def learning(history: Sequence[Mapping[str, Any]], metric: str, best: int) -> str:
    """Draw loss and score by epoch."""
    return svg(curves({"": history}, metric, {"": best}), TITLES["course.svg"])


@style()
def confusion(labels: Sequence[object], counts: Sequence[Sequence[int]]) -> str:
    """Draw how often each label (down) was taken for each (across), coloured by its share of the label's rows."""
    n = len(labels)
    shades = [
        [(0.15 + 0.85 * count / sum(row)) * (1 if i == j else -1) if count else 0.0 for j, count in enumerate(row)]
        for i, row in enumerate(counts)
    ]  # what is wrong is below zero, which is red
    cell = max(0.25, min(0.7, 8.5 / n))
    texts = [[amount(count) if count else "" for count in row] for row in counts]
    names = distinct(labels)
    figure, axis = matrix(shades, names, names, cell=(cell, cell), texts=texts, most=1.0)
    axis.set_title("Gold label down, predicted label across")
    axis.set_xlabel("coloured by the share of a gold label's rows", loc="left")
    return svg(figure, TITLES["confusion.svg"])


@style()
def calibration(bins: Sequence[Mapping[str, Any]], error: float | None) -> str:
    """Draw how often answers are right by how sure the task is of them, with the diagonal where both agree."""
    figure, (axis,) = panels(4.0, 3.2)
    filled = [(i, each) for i, each in enumerate(bins) if each["count"]]
    most = max((each["count"] for _, each in filled), default=1)
    for i, each in filled:
        left, tall = i / len(bins), 0.25 * each["count"] / most
        axis.bar(left, tall, 0.9 / len(bins), align="edge", color=LINE)
        axis.text(left + 0.45 / len(bins), tall + 0.01, amount(each["count"]), ha="center", fontsize=7, color=FAINT)
    axis.plot([0, 1], [0, 1], "--", color=FAINT, lw=1)
    axis.plot([each["confidence"] for _, each in filled], [each["accuracy"] for _, each in filled], "o-", color=GREEN)
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability (bars: rows in a bin)", ylabel="right")
    axis.set_title(TITLES["calibration.svg"] + ("" if error is None else f"\nExpected calibration error {error:.3f}"))
    return svg(figure, TITLES["calibration.svg"])


@style()
def scatter(targets: Sequence[Mapping[str, Any]]) -> str:
    """Draw predicted against gold numbers, a panel for each target; on the diagonal both are the same."""
    across = min(len(targets), 3)
    figure, axes = panels(2.8, 2.8, math.ceil(len(targets) / across), across)
    for axis, target in zip(axes, targets, strict=False):
        pairs = zip(target["gold"], target["predicted"], strict=True)
        points = [(x, y) for x, y in pairs if drawable(x) and drawable(y)]
        axis.plot([x for x, _ in points], [y for _, y in points], "o", ms=4, mew=0, alpha=0.55, color=BLUE)
        axis.axline((0, 0), slope=1, ls="--", lw=1, color=FAINT)
        axis.set(xlabel="gold", ylabel="predicted", title=short(target["name"], 34) or TITLES["scatter.svg"])
    for axis in axes[len(targets) :]:
        axis.set_visible(False)
    return svg(figure, TITLES["scatter.svg"])
